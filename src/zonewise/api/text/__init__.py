"""JSON, YAML and times as an API server written in Go reads them."""
