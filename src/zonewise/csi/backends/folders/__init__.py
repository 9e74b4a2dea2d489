"""The embedded backend: pools are folders, volumes are image files on loop devices, or folders."""
