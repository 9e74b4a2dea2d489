"""The messages of CSI 1.13: ``csi.proto`` is ours to read, ``csi_pb2`` is generated from it."""
