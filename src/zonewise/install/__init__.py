"""The manifests that run Zonewise on a real cluster."""
