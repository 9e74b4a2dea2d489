"""From the bytes of a request to a stored object: strict decoding, defaults, conversion."""
