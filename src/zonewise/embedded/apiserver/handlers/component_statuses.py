"""ComponentStatuses: the health of the control plane's components, computed at each request.

``etcd-0`` is the log that everything is written to. The scheduler and the controllers run in this
process; an API server without them answers as a real one that cannot connect to their ports.
"""

from __future__ import annotations

from typing import Any

from zonewise.embedded.apiserver.store.entry import Entry, encode

Obj = dict[str, Any]

COMPONENT_STATUSES = "/componentstatuses"
PORTS = {"scheduler": 10259, "controller-manager": 10257}


def component_statuses(*, failure: str | None, running: bool) -> list[Entry]:
    """All statuses; ``failure`` is why writes fail, ``running`` whether the other parts run."""
    messages = {
        name: "ok" if running else _connection_refused(port) for name, port in PORTS.items()
    }
    messages["etcd-0"] = failure or "ok"
    return [_build_status(name, message) for name, message in messages.items()]


def _connection_refused(port: int) -> str:
    address = f"127.0.0.1:{port}"
    return f'Get "https://{address}/healthz": dial tcp {address}: connect: connection refused'


def _build_status(name: str, message: str) -> Entry:
    status = "True" if message == "ok" else "False"
    obj: Obj = {
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    }
    return Entry.decode(encode(obj), 0)
