"""The slices of a Service: which endpoints, in which slice, with which hints. Pure."""
