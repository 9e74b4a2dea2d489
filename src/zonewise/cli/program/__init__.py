"""What all commands share: how a command is built, its flags, its connection."""
