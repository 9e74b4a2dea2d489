"""Listening sockets and HTTP connections that strangers cannot exhaust."""
