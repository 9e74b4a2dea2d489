"""`python -m tools.ceph`: link Debian's Ceph bindings into this environment."""

from __future__ import annotations

import sys

from tools.ceph.bindings import link

if __name__ == "__main__":
    sys.exit(link())
