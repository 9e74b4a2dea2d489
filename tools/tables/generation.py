"""All tables from one run of a real server, as the bytes of the files they are kept in.

One line per definition, kind or object, in a fixed order: a new version of Kubernetes is read as a
diff. Everything that varies from run to run is left out, so the same server gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tools import realkube
from tools.tables.bodies import refusals
from tools.tables.bootstrap import bootstrap
from tools.tables.defaults import observe
from tools.tables.enforcement import enforced
from tools.tables.kinds import kinds
from tools.tables.server import Server
from tools.tables.types import definitions, go_structs, wire_numbers
from zonewise.embedded.machinery.schema.definitions import Definition, Definitions

ROOT = Path(__file__).parents[2]
TABLES = "src/zonewise/embedded/machinery/schema/tables"
ANSWERS = "tests/embedded/machinery/decoding/answers.json"
REFUSALS = "tests/embedded/machinery/decoding/refusals.json"
TOKEN = realkube.Token("tables", "tables", ("system:masters",))
GENERATED = "by python -m tools.tables from a running kube-apiserver; do not edit"

_encode = msgspec.json.Encoder(order="sorted").encode


def start(binaries: realkube.Binaries | None = None) -> realkube.ControlPlane:
    """An unused API server."""
    settings = realkube.Settings(controllers=(), scheduler=False, fsync=False, tokens=(TOKEN,))
    return realkube.start(settings, binaries=binaries)


def connect(cluster: realkube.ControlPlane) -> Server:
    """A connection to it."""
    return Server(cluster.url, TOKEN.token, cluster.certificate_authority)


def tables(server: Server) -> dict[str, bytes]:
    """The content of every generated file by its place in the tree."""
    version = server.get("/version")["gitVersion"]
    documents = {
        name: server.get(entry["serverRelativeURL"])
        for name, entry in sorted(server.get("/openapi/v3")["paths"].items())
    }
    types = definitions(documents, go_structs())
    rows = kinds(server, types)
    started = bootstrap(server, rows)
    graph = Definitions(table=types)
    seen = observe(server, rows, graph)
    unseen = seen.unseen(rows, graph)
    if unseen:
        raise ValueError(f"samples and UNSEEN disagree on {unseen}")
    facts = enforced(server, rows, graph)
    head = {"generated": GENERATED, "version": version}
    return {
        f"{TABLES}/types.json": _by_name(head, "types", types),
        f"{TABLES}/kinds.json": _in_order(head, "kinds", rows),
        f"{TABLES}/defaults.json": _by_name(
            head, "defaults", seen.defaults(), dropped=seen.dropped(), **facts
        ),
        f"{TABLES}/bootstrap.json": _in_order(head, "objects", started),
        f"{TABLES}/wire.json": _by_name(head, "numbers", wire_numbers(types)),
        ANSWERS: _in_order(head, "answers", seen.answers),
        REFUSALS: _in_order(head, "refusals", refusals(server)),
    }


def outdated(generated: Mapping[str, bytes]) -> list[str]:
    """Files of the tree that differ from what a server answers."""
    return [
        name
        for name, content in generated.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_bytes() != content
    ]


def _by_name(
    head: Mapping[str, str],
    name: str,
    rows: Mapping[str, Definition | Mapping[str, Any]],
    **more: Any,
) -> bytes:
    lines = [_encode(key) + b":" + _encode(rows[key]) for key in sorted(rows)]
    return _file({**head, **more}, name, b"{", lines, b"}")


def _in_order(head: Mapping[str, str], name: str, rows: Iterable[Any]) -> bytes:
    return _file(head, name, b"[", [_encode(row) for row in rows], b"]")


def _file(
    head: Mapping[str, Any], name: str, opening: bytes, lines: Iterable[bytes], closing: bytes
) -> bytes:
    start = _encode(head)[:-1]
    body = b",\n".join(lines)
    return start + b"," + _encode(name) + b":" + opening + b"\n" + body + b"\n" + closing + b"}\n"
