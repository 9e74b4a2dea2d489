"""The official sidecars of CSI drivers as programs, the versions that `install --csi` prints."""
