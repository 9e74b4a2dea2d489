"""Requests to an API server and watches, over any transport."""
