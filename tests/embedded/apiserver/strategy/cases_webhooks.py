"""Valid and invalid webhook configurations."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import patch, put

PREFIX = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{PREFIX}/mutatingwebhookconfigurations"
VALIDATING = f"{PREFIX}/validatingwebhookconfigurations"

RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
SERVICE = {"service": {"name": "s", "namespace": "n"}}
HOOK: Obj = {
    "name": "a.example.com",
    "admissionReviewVersions": ["v1"],
    "sideEffects": "None",
    "clientConfig": SERVICE,
    "rules": [RULE],
}
NEVER = {"a b": "c d"}


def _hook(label: str, *steps: Step, **fields: Any) -> Case:
    hook = {key: value for key, value in (HOOK | fields).items() if value is not ...}
    body = {"metadata": {"name": "zw-a"}, "webhooks": [hook]}
    return Case(f"hook {label}", VALIDATING, body, steps)


def _rule(label: str, **fields: Any) -> Case:
    rule = {key: value for key, value in (RULE | fields).items() if value is not ...}
    return _hook(f"rule {label}", rules=[rule])


def _client(label: str, config: Obj) -> Case:
    return _hook(f"client {label}", clientConfig=config)


def _mutating(label: str, *steps: Step, **fields: Any) -> Case:
    body = {"metadata": {"name": "zw-a"}, "webhooks": [HOOK | fields]}
    return Case(f"mutating {label}", MUTATING, body, steps)


CASES: tuple[Case, ...] = (
    _hook(
        "plain",
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"webhooks": [HOOK | {"timeoutSeconds": 3}]}),
        put({"webhooks": [HOOK | {"timeoutSeconds": 31}]}),
        put({"webhooks": None}),
    ),
    Case("hook none", VALIDATING, {"metadata": {"name": "zw-a"}}),
    Case("hook bad name", VALIDATING, {"metadata": {"name": "A_b"}}),
    _hook("unnamed", name=...),
    _hook("short name", name="a"),
    _hook("bad name of hook", name="A_b.c.d"),
    _hook("two parts", name="a.b"),
    Case("hook twice", VALIDATING, {"metadata": {"name": "zw-a"}, "webhooks": [HOOK, HOOK]}),
    _hook("no versions", admissionReviewVersions=...),
    _hook("empty versions", admissionReviewVersions=[]),
    _hook("unknown version", admissionReviewVersions=["v9"]),
    _hook("some unknown version", admissionReviewVersions=["v9", "v1"]),
    _hook("version twice", admissionReviewVersions=["v1", "v1"]),
    _hook("bad version", admissionReviewVersions=["A_b", "v1"]),
    _hook("beta version", admissionReviewVersions=["v1beta1"]),
    _hook("no effects", sideEffects=...),
    _hook("some effects", sideEffects="Some"),
    _hook("unknown effects", sideEffects="Unknown"),
    _hook("dry effects", sideEffects="NoneOnDryRun"),
    _hook("timeout 0", timeoutSeconds=0),
    _hook("timeout 31", timeoutSeconds=31),
    _hook("timeout 30", timeoutSeconds=30),
    _hook("policy", failurePolicy="Odd"),
    _hook("match", matchPolicy="Odd"),
    _hook("fine policies", failurePolicy="Ignore", matchPolicy="Exact"),
    _hook(
        "selector",
        namespaceSelector={"matchLabels": NEVER},
        objectSelector={"matchExpressions": [{"key": "a", "operator": "In"}]},
    ),
    _client("none", {}),
    _client("both", SERVICE | {"url": "https://x.example.com"}),
    _client("url", {"url": "https://x.example.com/a"}),
    _client("url http", {"url": "http://x.example.com"}),
    _client("url user", {"url": "https://u:p@x.example.com"}),
    _client("url query", {"url": "https://x.example.com?a=b"}),
    _client("url fragment", {"url": "https://x.example.com#a"}),
    _client("url host", {"url": "https://"}),
    _client("url junk", {"url": ":"}),
    _client("service nameless", {"service": {"name": "", "namespace": ""}}),
    _client("service port", {"service": {"name": "s", "namespace": "n", "port": 0}}),
    _client("service port high", {"service": {"name": "s", "namespace": "n", "port": 65536}}),
    _client("service path", {"service": {"name": "s", "namespace": "n", "path": "x"}}),
    _client("service path double", {"service": {"name": "s", "namespace": "n", "path": "/a//b"}}),
    _client("service path bad", {"service": {"name": "s", "namespace": "n", "path": "/A b"}}),
    _client("service path end", {"service": {"name": "s", "namespace": "n", "path": "/a/"}}),
    _client("bundle", SERVICE | {"caBundle": "YQ=="}),
    _rule("no groups", apiGroups=...),
    _rule("no versions", apiVersions=...),
    _rule("no resources", resources=...),
    _rule("no operations", operations=...),
    _rule("stars", apiGroups=["*"], apiVersions=["*"], resources=["*"], operations=["*"]),
    _rule(
        "star and more", apiGroups=["*", ""], apiVersions=["*", "v1"], operations=["*", "CREATE"]
    ),
    _rule("resource star and more", resources=["*", "pods"]),
    _rule("resource star star", resources=["*/*", "pods"]),
    _rule("resource sub", resources=["pods/*", "pods/status"]),
    _rule("resource sub star", resources=["*/scale", "pods/scale"]),
    _rule("resource fine", resources=["pods", "pods/status", "*/scale"]),
    _rule("resource empty", resources=[""]),
    _rule("version empty", apiVersions=[""]),
    _rule("operation odd", operations=["MAYBE"]),
    _rule("scope", scope="Odd"),
    _rule("scope fine", scope="Cluster"),
    _hook("conditions", matchConditions=[{"name": "a", "expression": "true"}]),
    _hook("condition unnamed", matchConditions=[{"name": "", "expression": "true"}]),
    _hook("condition empty", matchConditions=[{"name": "a", "expression": " "}]),
    _hook(
        "condition twice",
        matchConditions=[{"name": "a", "expression": "true"}, {"name": "a", "expression": "true"}],
    ),
    _hook("condition bad name", matchConditions=[{"name": "a b", "expression": "true"}]),
    _hook("condition syntax", matchConditions=[{"name": "a", "expression": "1 +"}]),
    _hook("condition type", matchConditions=[{"name": "a", "expression": "'x'"}]),
    _hook("condition unknown", matchConditions=[{"name": "a", "expression": "nothing.here"}]),
    _hook(
        "condition good",
        matchConditions=[
            {
                "name": "a",
                "expression": "request.userInfo.username == 'x' && object.metadata.name != ''",
            }
        ],
    ),
    _hook(
        "65 conditions",
        matchConditions=[{"name": f"a{i}", "expression": "true"} for i in range(65)],
    ),
    _mutating(
        "plain",
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"metadata": {"annotations": {"a": "b"}}}),
        patch({"metadata": {"annotations": {"a": "c"}}}),
        put({"webhooks": [HOOK | {"reinvocationPolicy": "IfNeeded"}]}),
    ),
    _mutating("reinvocation", reinvocationPolicy="Odd"),
    _mutating("effects", sideEffects="Some"),
    _mutating("timeout", timeoutSeconds=31),
    _mutating("name", name="a"),
)
