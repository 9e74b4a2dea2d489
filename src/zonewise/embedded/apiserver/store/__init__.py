"""Every object and every version in one order: in memory, on the disk, and to watchers."""
