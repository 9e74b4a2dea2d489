"""Development tools for the CSI driver: generated messages, csi-sanity, the protocol's module."""
