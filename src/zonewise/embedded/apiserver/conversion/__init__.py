"""One custom resource in several versions, and the webhook that converts between them."""
