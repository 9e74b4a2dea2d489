"""A request, what its path names, which formats it speaks, and the errors it is answered with."""
