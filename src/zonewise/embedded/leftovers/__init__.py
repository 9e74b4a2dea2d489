"""What a killed cluster leaves on the machine, and how the next one removes it."""
