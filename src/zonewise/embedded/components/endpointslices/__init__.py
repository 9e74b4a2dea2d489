"""EndpointSlices of Endpoints that are written by hand."""
