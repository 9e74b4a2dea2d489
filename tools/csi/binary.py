"""csi-sanity and the protocol's own descriptors: built like the control plane, kept beside it."""

from __future__ import annotations

from pathlib import Path

from tools.realkube.binaries import Binaries, Module, Suite, Teller, build

VERSION = "v5.6.0"

CSI = Suite(
    "csi",
    VERSION,
    (
        Module(
            Path(__file__).parent / "go",
            {
                "csi-sanity": "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
                "csi-descriptors": ".",
            },
            {},
        ),
    ),
)


def csi(teller: Teller | None = None) -> Binaries:
    """The programs, built first if they are not there."""
    return build(CSI, teller=teller)
