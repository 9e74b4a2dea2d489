"""CoreDNS as a program: built like the control plane, cached beside it.

Only the plugins that a cluster's Corefile names are built in (``go/main.go``): those of cloud
providers would be most of the build and are not used.
"""

from __future__ import annotations

from pathlib import Path

from tools.realkube.binaries import Module, Suite, Teller, build

VERSION = "v1.15.0"

COREDNS = Suite(
    "coredns",
    VERSION,
    (Module(Path(__file__).parent / "go", {"coredns": "."}, {}),),
)


def coredns(teller: Teller | None = None) -> Path:
    """The program, built first if it is not there."""
    return build(COREDNS, teller=teller).path("coredns")
