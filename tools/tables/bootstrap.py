"""What a fresh API server creates by itself: roles and their bindings, flow control, priorities.

Read from a server that is ready and unused. What differs from run to run (identity,
times, versions, who wrote it) is left out, and so are the objects of one installation (its own
address, certificates and leases).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tools.tables.server import Server
from zonewise.embedded.machinery.schema.kinds import KindRow

KINDS = {
    "ClusterRole",
    "ClusterRoleBinding",
    "FlowSchema",
    "Namespace",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "Role",
    "RoleBinding",
}
META = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation")


def bootstrap(server: Server, kinds: Iterable[KindRow]) -> list[dict[str, Any]]:
    """The objects, in the order of kinds and names."""
    objects = []
    for row in sorted(kinds, key=lambda row: row.kind):
        if row.kind not in KINDS:
            continue
        root = f"/apis/{row.group}/{row.version}" if row.group else f"/api/{row.version}"
        listed = server.get(f"{root}/{row.plural}")
        for item in listed["items"]:
            for name in META:
                item["metadata"].pop(name, None)
            item.pop("status", None)
            api_version = f"{row.group}/{row.version}".lstrip("/")
            objects.append({"kind": row.kind, "apiVersion": api_version, **item})
    return objects
