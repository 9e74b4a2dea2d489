"""Sets of fields, their managers, and server-side apply."""
