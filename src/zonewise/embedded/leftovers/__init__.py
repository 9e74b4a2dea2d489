"""What a killed cluster leaves on the machine, and that the next one removes it."""
