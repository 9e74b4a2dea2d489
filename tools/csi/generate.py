"""Makes ``csi_pb2`` from ``csi.proto``: the same text in, the same modules out.

The compiler is the one in grpcio-tools, which the locked requirements pin. Only messages are
generated: services and stubs are our own tables (``transport/methods.py``).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PROTOCOL = Path(__file__).parents[2] / "src" / "zonewise" / "csi" / "protocol"
SOURCE = PROTOCOL / "csi.proto"
GENERATED = ("csi_pb2.py", "csi_pb2.pyi")
HEAD = "# Generated from csi.proto by `python -m tools.csi generate`; edit that, not this.\n"


def generated() -> dict[str, str]:
    """The text of each module."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "grpc_tools.protoc",
                f"--proto_path={PROTOCOL}",
                f"--python_out={folder}",
                f"--pyi_out={folder}",
                SOURCE.name,
            ],
            check=True,
        )
        return {name: HEAD + (Path(folder) / name).read_text() for name in GENERATED}


def write() -> list[Path]:
    """Write the modules; returns those that changed."""
    changed = []
    for name, text in generated().items():
        path = PROTOCOL / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            changed.append(path)
    return changed
