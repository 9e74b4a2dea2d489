"""ComponentStatuses: the health of the control plane's parts, made at each request.

``etcd-0`` is the log that everything is written to. The scheduler and the controllers run in this
process; an API server without them answers as a real one that cannot connect to their ports.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.store.entry import Entry, encode

Obj = dict[str, Any]

COMPONENT_STATUSES = "/componentstatuses"
PORTS = {"scheduler": 10259, "controller-manager": 10257}


def components(*, failure: str | None, running: bool) -> list[Entry]:
    """All of them; ``failure`` is why nothing is written, ``running`` whether the others work."""
    found = {name: "ok" if running else _silent(port) for name, port in PORTS.items()}
    found["etcd-0"] = failure or "ok"
    return [_status(name, message) for name, message in found.items()]


def _silent(port: int) -> str:
    where = f"127.0.0.1:{port}"
    return f'Get "https://{where}/healthz": dial tcp {where}: connect: connection refused'


def _status(name: str, message: str) -> Entry:
    status = "True" if message == "ok" else "False"
    whole: Obj = {
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    }
    return Entry.of(encode(whole), 0)
