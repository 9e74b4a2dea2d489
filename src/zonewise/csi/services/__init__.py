"""The services of CSI as blocking functions: a request in, an answer or a ``CsiError`` out."""
