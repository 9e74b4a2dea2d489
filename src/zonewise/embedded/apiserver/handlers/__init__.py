"""What a request does: read, write, patch, delete, and subresources."""
