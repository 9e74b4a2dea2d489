"""What the fields of an object are: types, the generated tables of the built-in kinds, formats."""
