"""Sets of fields, who manages them, and server-side apply."""
