"""The journal in RADOS: in one pool (``omap``), and in all pools of a cluster (``pools``)."""
