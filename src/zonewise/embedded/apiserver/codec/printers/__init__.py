"""Printers: the cells that kubectl shows of an object, by kind."""
