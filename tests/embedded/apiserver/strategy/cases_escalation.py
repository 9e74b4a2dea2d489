"""What a user who may write roles, but has few permissions, may write into them.

Unlike the other tables this is one sequence: the administrator's objects come first, then the steps
of the user, each after those before it.
"""

from __future__ import annotations

from tests.embedded.apiserver.strategy.case_runner import Obj
from tests.embedded.apiserver.strategy.cases_roles import (
    BINDINGS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    GROUP,
    ROLES,
)

USER = "joe"
GROUPS = ("devs",)
WRITES = ["create", "update", "patch", "get", "delete"]
ME = {"kind": "User", "name": USER, "apiGroup": GROUP}


def _rule(resources: list[str], verbs: list[str], group: str = "", **more: list[str]) -> Obj:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **more}


def _role(name: str, *rules: Obj, **fields: Obj) -> Obj:
    return {"metadata": {"name": name}, "rules": list(rules), **fields}


def _binding(name: str, role: str, kind: str = "ClusterRole") -> Obj:
    reference = {"kind": kind, "name": role, "apiGroup": GROUP}
    return {"metadata": {"name": name}, "roleRef": reference, "subjects": [ME]}


RBAC = ["roles", "rolebindings", "clusterroles", "clusterrolebindings"]

SETUP: tuple[tuple[str, Obj], ...] = (
    (
        CLUSTER_ROLES,
        _role(
            "zw-joe",
            _rule(RBAC, WRITES, GROUP),
            _rule(["pods"], ["get", "list"]),
            _rule(["secrets"], ["get"], resourceNames=["mine"]),
            _rule(["pods/*"], ["get"]),
            {"nonResourceURLs": ["/healthz", "/a/*"], "verbs": ["get"]},
            _rule(["clusterroles"], ["bind"], GROUP, resourceNames=["zw-bindable"]),
            _rule(["roles"], ["escalate"], GROUP, resourceNames=["zw-free"]),
        ),
    ),
    (CLUSTER_BINDINGS, _binding("zw-joe", "zw-joe")),
    (CLUSTER_ROLES, _role("zw-bindable", _rule(["nodes"], ["*"]))),
    (CLUSTER_ROLES, _role("zw-strong", _rule(["nodes"], ["*"]))),
    (CLUSTER_ROLES, _role("zw-weak", _rule(["pods"], ["get"]))),
    (ROLES, _role("zw-strong", _rule(["secrets"], ["get"]))),
    (ROLES, _role("zw-weak", _rule(["pods"], ["list"]))),
    (
        CLUSTER_ROLES,
        _role(
            "zw-gather", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"zw": "x"}}]}
        ),
    ),
    (BINDINGS, _binding("zw-owned", "zw-strong")),
)

LABEL = {"metadata": {"labels": {"a": "b"}}}

STEPS: tuple[tuple[str, str, Obj], ...] = (
    ("POST", ROLES, _role("zw-1", _rule(["pods"], ["get"]))),
    ("POST", ROLES, _role("zw-2", _rule(["pods"], ["get", "watch"]))),
    ("POST", ROLES, _role("zw-2", _rule(["pods"], ["*"]))),
    ("POST", ROLES, _role("zw-2", _rule(["*"], ["get"]))),
    ("POST", ROLES, _role("zw-2", _rule(["pods"], ["get"], "apps"))),
    ("POST", ROLES, _role("zw-2", _rule(["secrets"], ["get"]))),
    ("POST", ROLES, _role("zw-3", _rule(["secrets"], ["get"], resourceNames=["mine"]))),
    ("POST", ROLES, _role("zw-4", _rule(["secrets"], ["get"], resourceNames=["mine", "other"]))),
    ("POST", ROLES, _role("zw-5", _rule(["pods"], ["get"], resourceNames=["p"]))),
    ("POST", ROLES, _role("zw-6", _rule(["pods/log"], ["get"]))),
    ("POST", ROLES, _role("zw-7", _rule(["pods/*"], ["get"]))),
    ("POST", ROLES, _role("zw-8")),
    ("POST", ROLES, _role("zw-9", {"verbs": []})),
    ("POST", ROLES, _role("zw-9", {"verbs": ["delete"], "apiGroups": [""]})),
    ("POST", ROLES, _role("zw-free", _rule(["secrets"], ["*"]))),
    ("POST", ROLES, _role("zw-10", _rule(["roles"], ["create", "get"], GROUP))),
    ("POST", CLUSTER_ROLES, _role("zw-11", _rule(["pods"], ["get"]))),
    ("POST", CLUSTER_ROLES, _role("zw-12", {"nonResourceURLs": ["/healthz"], "verbs": ["get"]})),
    (
        "POST",
        CLUSTER_ROLES,
        _role("zw-13", {"nonResourceURLs": ["/a/b", "/a/*"], "verbs": ["get"]}),
    ),
    ("POST", CLUSTER_ROLES, _role("zw-14", {"nonResourceURLs": ["/metrics"], "verbs": ["get"]})),
    ("POST", CLUSTER_ROLES, _role("zw-15", {"nonResourceURLs": ["*"], "verbs": ["get"]})),
    (
        "POST",
        CLUSTER_ROLES,
        _role("zw-16", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"zw": "x"}}]}),
    ),
    ("PUT", f"{ROLES}/zw-1", _role("zw-1", _rule(["pods"], ["get", "list"]))),
    ("PUT", f"{ROLES}/zw-1", _role("zw-1", _rule(["pods"], ["delete"]))),
    ("PATCH", f"{ROLES}/zw-strong", LABEL),
    ("PATCH", f"{ROLES}/zw-strong", {"metadata": {"finalizers": ["x.io/y"]}}),
    ("PATCH", f"{ROLES}/zw-strong", {"metadata": {"finalizers": None}}),
    ("PATCH", f"{ROLES}/zw-weak", LABEL),
    ("PUT", f"{ROLES}/zw-17", _role("zw-17", _rule(["pods"], ["delete"]))),
    ("PUT", f"{ROLES}/zw-18", _role("zw-18", _rule(["pods"], ["get"]))),
    ("PATCH", f"{CLUSTER_ROLES}/zw-gather", LABEL),
    ("PATCH", f"{CLUSTER_ROLES}/zw-weak", LABEL),
    (
        "PATCH",
        f"{CLUSTER_ROLES}/zw-weak",
        {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"zw": "x"}}]}},
    ),
    ("POST", BINDINGS, _binding("zw-1", "zw-weak", "Role")),
    ("POST", BINDINGS, _binding("zw-2", "zw-strong", "Role")),
    ("POST", BINDINGS, _binding("zw-3", "zw-bindable")),
    ("POST", BINDINGS, _binding("zw-4", "zw-strong")),
    ("POST", BINDINGS, _binding("zw-5", "zw-missing")),
    ("POST", BINDINGS, _binding("zw-5", "zw-missing", "Role")),
    ("POST", BINDINGS, _binding("zw-6", "zw-weak")),
    ("POST", BINDINGS, _binding("zw-7", "cluster-admin")),
    ("POST", BINDINGS, _binding("zw-7", "")),
    ("PATCH", f"{BINDINGS}/zw-owned", LABEL),
    ("PATCH", f"{BINDINGS}/zw-owned", {"metadata": {"finalizers": ["x.io/y"]}}),
    ("PATCH", f"{BINDINGS}/zw-owned", {"metadata": {"finalizers": None}}),
    ("PATCH", f"{BINDINGS}/zw-1", LABEL),
    ("PATCH", f"{BINDINGS}/zw-1", {"subjects": []}),
    ("PATCH", f"{BINDINGS}/zw-1", {"roleRef": {"name": "zw-strong"}}),
    ("POST", CLUSTER_BINDINGS, _binding("zw-1", "zw-weak")),
    ("POST", CLUSTER_BINDINGS, _binding("zw-2", "zw-bindable")),
    ("POST", CLUSTER_BINDINGS, _binding("zw-3", "zw-strong")),
    ("POST", CLUSTER_BINDINGS, _binding("zw-4", "cluster-admin")),
    ("POST", CLUSTER_BINDINGS, _binding("zw-5", "zw-missing")),
    ("POST", CLUSTER_BINDINGS, _binding("zw-6", "zw-weak", "Role")),
    ("PUT", f"{CLUSTER_BINDINGS}/zw-7", _binding("zw-7", "cluster-admin")),
    ("DELETE", f"{ROLES}/zw-strong", {}),
    ("DELETE", f"{BINDINGS}/zw-owned", {}),
)
