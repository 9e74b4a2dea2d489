"""What a client can read about the server itself: groups, OpenAPI, versions, health."""
