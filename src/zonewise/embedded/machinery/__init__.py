"""What an API server does to objects, as pure functions on plain values: no I/O, no clock."""
