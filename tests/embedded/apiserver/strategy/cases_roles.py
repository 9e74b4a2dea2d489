"""Valid and invalid roles and bindings."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import put

GROUP = "rbac.authorization.k8s.io"
PREFIX = f"/apis/{GROUP}/v1"
ROLES = PREFIX + "/namespaces/{ns}/roles"
BINDINGS = PREFIX + "/namespaces/{ns}/rolebindings"
CLUSTER_ROLES = PREFIX + "/clusterroles"
CLUSTER_BINDINGS = PREFIX + "/clusterrolebindings"

READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
URL = {"nonResourceURLs": ["/x"], "verbs": ["get"]}
JANE = {"kind": "User", "name": "jane", "apiGroup": GROUP}
TO_ROLE = {"kind": "Role", "name": "r", "apiGroup": GROUP}
TO_CLUSTER = {"kind": "ClusterRole", "name": "view", "apiGroup": GROUP}


def _role(label: str, *rules: Obj, steps: tuple[Step, ...] = (), name: str = "zw-a") -> Case:
    return Case(f"role {label}", ROLES, {"metadata": {"name": name}, "rules": list(rules)}, steps)


def _cluster(label: str, *rules: Obj, steps: tuple[Step, ...] = (), **fields: Any) -> Case:
    body = {"metadata": {"name": "zw-a"}, "rules": list(rules), **fields}
    return Case(f"clusterrole {label}", CLUSTER_ROLES, body, steps)


def _bound(label: str, reference: Obj | None, *subjects: Obj, steps: tuple[Step, ...] = ()) -> Case:
    body: Obj = {"metadata": {"name": "zw-a"}, "subjects": list(subjects)}
    if reference is not None:
        body["roleRef"] = reference
    return Case(f"binding {label}", BINDINGS, body, steps)


def _all(label: str, reference: Obj, *subjects: Obj, steps: tuple[Step, ...] = ()) -> Case:
    body = {"metadata": {"name": "zw-a"}, "subjects": list(subjects), "roleRef": reference}
    return Case(f"clusterbinding {label}", CLUSTER_BINDINGS, body, steps)


CASES: tuple[Case, ...] = (
    _role(
        "plain",
        READ,
        steps=(
            put({"rules": [READ | {"verbs": ["list"]}]}),
            put({"rules": None}),
            put({"metadata": {"labels": {"a": "b"}}}),
            put({"rules": [{"verbs": []}]}),
        ),
    ),
    Case("role without rules", ROLES, {"metadata": {"name": "zw-a"}}),
    Case("role null rules", ROLES, {"metadata": {"name": "zw-a"}, "rules": None}),
    _role("no verbs", {"apiGroups": [""], "resources": ["pods"], "verbs": []}),
    _role("no resources", {"apiGroups": [""], "verbs": ["get"]}),
    _role("no groups", {"resources": ["pods"], "verbs": ["get"]}),
    _role("nothing", {"verbs": ["get"]}),
    _role("url", URL),
    _role("url and resource", READ | URL),
    _role("several", {"verbs": []}, {"apiGroups": [""], "verbs": ["get"]}),
    _role("stars", {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}),
    _role("names", READ | {"resourceNames": ["a", ""]}),
    _role("odd name", READ, name="system:a:B_c"),
    _role("slash name", READ, name="a/b"),
    _role("percent name", READ, name="a%b"),
    _role("dot name", READ, name=".."),
    _cluster(
        "plain",
        READ,
        URL,
        steps=(
            put({"rules": [URL]}),
            put({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
        ),
    ),
    _cluster("url and resource", READ | URL),
    _cluster("url and group", {"nonResourceURLs": ["/x"], "apiGroups": [""], "verbs": ["get"]}),
    _cluster(
        "url and names", {"nonResourceURLs": ["/x"], "resourceNames": ["a"], "verbs": ["get"]}
    ),
    _cluster("url no verbs", {"nonResourceURLs": ["/x"], "verbs": []}),
    _cluster("no verbs", {"apiGroups": [""], "resources": ["pods"]}),
    _cluster(
        "aggregation", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"zw": "b"}}]}
    ),
    _cluster("aggregation empty", aggregationRule={}),
    _cluster("aggregation none", aggregationRule={"clusterRoleSelectors": []}),
    _cluster(
        "aggregation odd",
        aggregationRule={
            "clusterRoleSelectors": [
                {"matchLabels": {"a b": "b c"}},
                {"matchExpressions": [{"key": "a", "operator": "Odd"}]},
            ]
        },
    ),
    _bound(
        "plain",
        TO_ROLE,
        JANE,
        steps=(
            put({"roleRef": {"name": "other"}}),
            put({"roleRef": {"kind": "ClusterRole"}}),
            put({"subjects": []}),
            put({"subjects": None}),
            put({"metadata": {"labels": {"a": "b"}}}),
            put({"roleRef": {"apiGroup": None}}),
        ),
    ),
    _bound("cluster role", TO_CLUSTER, JANE),
    _bound("no subjects", TO_CLUSTER),
    _bound("no reference", None, JANE),
    _bound("empty reference", {}, JANE),
    _bound("reference without group", {"kind": "Role", "name": "r"}, JANE),
    _bound("reference of odd group", {"kind": "Role", "name": "r", "apiGroup": "x"}, JANE),
    _bound("reference of odd kind", {"kind": "Odd", "name": "r", "apiGroup": GROUP}, JANE),
    _bound("reference without name", {"kind": "Role", "name": "", "apiGroup": GROUP}, JANE),
    _bound("reference of bad name", {"kind": "Role", "name": "a/b", "apiGroup": GROUP}, JANE),
    _bound("subject without name", TO_ROLE, {"kind": "User"}),
    _bound("subject without kind", TO_ROLE, {"name": "x"}),
    _bound("subject of odd kind", TO_ROLE, {"kind": "Odd", "name": "x"}),
    _bound("user of odd group", TO_ROLE, {"kind": "User", "name": "x", "apiGroup": "x"}),
    _bound("group", TO_ROLE, {"kind": "Group", "name": "devs"}),
    _bound("group of odd group", TO_ROLE, {"kind": "Group", "name": "devs", "apiGroup": "x"}),
    _bound("account", TO_ROLE, {"kind": "ServiceAccount", "name": "a", "namespace": "b"}),
    _bound("account without namespace", TO_ROLE, {"kind": "ServiceAccount", "name": "a"}),
    _bound(
        "account of bad name", TO_ROLE, {"kind": "ServiceAccount", "name": "A b", "namespace": "b"}
    ),
    _bound(
        "account of odd group",
        TO_ROLE,
        {"kind": "ServiceAccount", "name": "a", "namespace": "b", "apiGroup": GROUP},
    ),
    _bound("user with namespace", TO_ROLE, JANE | {"namespace": "x"}),
    _all(
        "plain",
        TO_CLUSTER,
        JANE,
        steps=(
            put({"roleRef": {"name": "edit"}}),
            put({"subjects": [{"kind": "Group", "name": "g"}]}),
        ),
    ),
    _all("to role", TO_ROLE, JANE),
    _all("account without namespace", TO_CLUSTER, {"kind": "ServiceAccount", "name": "a"}),
    _all("several", {"kind": "Odd", "name": "", "apiGroup": "x"}, {"kind": "Odd", "name": ""}),
)
