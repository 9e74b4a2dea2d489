"""A request, what its path names, its formats, and the errors it is answered with."""
