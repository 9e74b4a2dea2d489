"""Schemas of objects: the generated tables of the built-in kinds, served kinds, formats."""
