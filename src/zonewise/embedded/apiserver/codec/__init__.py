"""Between bytes and objects: request bodies, and the forms an answer can have."""
