"""All objects and their versions: in memory, in the log on the disk, and sent to watchers."""
