"""The controllers without which an API server is not one: namespaces, garbage, custom resources."""
