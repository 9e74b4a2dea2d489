"""Which endpoint serves which clients: modes, hints, limits and routes. Pure."""
