"""The EndpointSlice controller with topology hints."""
