"""Ceph: volumes are RBD images, the journal is in RADOS. Needs python3-rados and python3-rbd."""
