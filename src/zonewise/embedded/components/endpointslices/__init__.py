"""EndpointSlices of Endpoints that users write."""
