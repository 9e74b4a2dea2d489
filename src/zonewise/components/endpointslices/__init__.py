"""EndpointSlices of Endpoints that somebody writes by hand."""
