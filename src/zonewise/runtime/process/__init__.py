"""A program from start to signal: its life, its log lines, its memory."""
