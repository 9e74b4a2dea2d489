"""Objects kept in memory: stores, the reflectors that fill them, snapshots and dumps."""
