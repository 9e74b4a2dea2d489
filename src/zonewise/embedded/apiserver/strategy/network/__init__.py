"""Services, EndpointSlices, Ingresses and policies."""
