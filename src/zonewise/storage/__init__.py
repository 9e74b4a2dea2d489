"""Which pool a volume is placed in, from where it can be used, and its journal. Pure."""
