"""What ``zonewise explain`` reads and prints, by what it explains; Services are in the command."""
