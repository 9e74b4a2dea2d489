"""What a client can ask about the server itself: groups, OpenAPI, versions, health."""
