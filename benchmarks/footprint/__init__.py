"""What the programs of ``zonewise install`` need: memory and CPU by the size of the cluster."""

from functools import partial

from benchmarks.footprint.measure import footprint

BENCHMARKS = {str(nodes): partial(footprint, nodes) for nodes in (100, 1000, 5000)}
