"""Valid and invalid Ingresses, IngressClasses and NetworkPolicies."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import put, status

PREFIX = "/apis/networking.k8s.io/v1"
INGRESSES = PREFIX + "/namespaces/{ns}/ingresses"
CLASSES = f"{PREFIX}/ingressclasses"
POLICIES = PREFIX + "/namespaces/{ns}/networkpolicies"

BACKEND = {"service": {"name": "s", "port": {"number": 80}}}


def _ingress(label: str, spec: Obj, *steps: Step, **meta: Any) -> Case:
    body = {"metadata": {"name": "zw-a", **meta}, "spec": spec}
    return Case(f"ingress {label}", INGRESSES, body, steps)


def _path(label: str, path: Obj, host: str = "a.example.com") -> Case:
    rule = {"host": host, "http": {"paths": [path]}}
    return _ingress(f"path {label}", {"rules": [rule]})


def _class(label: str, spec: Obj, *steps: Step) -> Case:
    return Case(
        f"ingressclass {label}", CLASSES, {"metadata": {"name": "zw-a"}, "spec": spec}, steps
    )


def _policy(label: str, spec: Obj, *steps: Step) -> Case:
    return Case(f"policy {label}", POLICIES, {"metadata": {"name": "zw-a"}, "spec": spec}, steps)


def _from(label: str, *peers: Obj) -> Case:
    return _policy(f"from {label}", {"podSelector": {}, "ingress": [{"from": list(peers)}]})


def _ports(label: str, *ports: Obj) -> Case:
    return _policy(
        f"ports {label}",
        {"podSelector": {}, "egress": [{"ports": list(ports)}], "policyTypes": ["Egress"]},
    )


GOOD = {"path": "/", "pathType": "Prefix", "backend": BACKEND}

CASES: tuple[Case, ...] = (
    _ingress(
        "plain",
        {"defaultBackend": BACKEND},
        put({"spec": {"ingressClassName": "x"}}),
        put({"metadata": {"labels": {"a": "b"}}}),
        status({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}),
        status({"status": {"loadBalancer": {"ingress": [{"ip": "x"}, {"hostname": "10.0.0.1"}]}}}),
        put({"spec": {"defaultBackend": None}}),
    ),
    _ingress("empty", {}),
    Case("ingress no spec", INGRESSES, {"metadata": {"name": "zw-a"}}),
    Case(
        "ingress bad name",
        INGRESSES,
        {"metadata": {"name": "A_b"}, "spec": {"defaultBackend": BACKEND}},
    ),
    _ingress("backend empty", {"defaultBackend": {}}),
    _ingress("backend nameless", {"defaultBackend": {"service": {"name": "", "port": {}}}}),
    _ingress(
        "backend bad name",
        {"defaultBackend": {"service": {"name": "1 b", "port": {"number": 0, "name": "A b"}}}},
    ),
    _ingress(
        "backend both ports",
        {"defaultBackend": {"service": {"name": "s", "port": {"number": 80, "name": "http"}}}},
    ),
    _ingress(
        "backend port high",
        {"defaultBackend": {"service": {"name": "s", "port": {"number": 65536}}}},
    ),
    _ingress(
        "backend resource",
        {"defaultBackend": {"resource": {"kind": "K", "name": "n", "apiGroup": "x.io"}}},
    ),
    _ingress("backend two", {"defaultBackend": BACKEND | {"resource": {"kind": "K", "name": "n"}}}),
    _ingress("backend odd resource", {"defaultBackend": {"resource": {"kind": "", "name": ""}}}),
    _path("plain", GOOD),
    _path("wild", GOOD, "*.example.com"),
    _path("bad wild", GOOD, "a.*.com"),
    _path("bad host", GOOD, "A_b"),
    _path("address host", GOOD, "10.0.0.1"),
    _path("no type", {"path": "/", "backend": BACKEND}),
    _path("odd type", GOOD | {"pathType": "Odd"}),
    _path("relative", GOOD | {"path": "x"}),
    _path("no path", GOOD | {"path": ""}),
    _path("double", GOOD | {"path": "/a//b"}),
    _path("dots", GOOD | {"path": "/a/../b"}),
    _path("encoded", GOOD | {"path": "/a%2fb"}),
    _path("implementation", GOOD | {"path": "x", "pathType": "ImplementationSpecific"}),
    _path("no implementation", {"pathType": "ImplementationSpecific", "backend": BACKEND}),
    _ingress("no paths", {"rules": [{"http": {"paths": []}}]}),
    _ingress("rule without http", {"rules": [{"host": "a.example.com"}]}),
    _ingress(
        "tls",
        {
            "defaultBackend": BACKEND,
            "tls": [{"hosts": ["a.example.com", "*.b.com"], "secretName": "s"}],
        },
    ),
    _ingress(
        "tls bad", {"defaultBackend": BACKEND, "tls": [{"hosts": ["A_b"], "secretName": "A b"}]}
    ),
    _ingress("class bad", {"defaultBackend": BACKEND, "ingressClassName": "A b"}),
    _ingress(
        "class twice",
        {"defaultBackend": BACKEND, "ingressClassName": "b"},
        annotations={"kubernetes.io/ingress.class": "a"},
    ),
    _class(
        "plain",
        {"controller": "example.com/c"},
        put({"spec": {"controller": "example.com/d"}}),
        put({"spec": {"parameters": {"kind": "K", "name": "n", "apiGroup": "x.io"}}}),
    ),
    _class("no controller", {}),
    _class("bad controller", {"controller": "a"}),
    _class("long controller", {"controller": "example.com/" + "x" * 250}),
    _class(
        "parameters odd",
        {"controller": "example.com/c", "parameters": {"kind": "", "name": "", "scope": "Odd"}},
    ),
    _class(
        "parameters namespaced",
        {
            "controller": "example.com/c",
            "parameters": {"kind": "K", "name": "n", "scope": "Namespace"},
        },
    ),
    _class(
        "parameters cluster",
        {
            "controller": "example.com/c",
            "parameters": {"kind": "K", "name": "n", "scope": "Cluster", "namespace": "x"},
        },
    ),
    _policy(
        "plain",
        {"podSelector": {}},
        put({"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}),
        put({"metadata": {"labels": {"a": "b"}}}),
    ),
    _policy("types", {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}),
    _policy("odd types", {"podSelector": {}, "policyTypes": ["Odd"]}),
    _policy("many types", {"podSelector": {}, "policyTypes": ["Ingress", "Egress", "Ingress"]}),
    _policy("bad selector", {"podSelector": {"matchLabels": {"a b": "c"}}}),
    _from("empty", {}),
    _from("pods", {"podSelector": {}}),
    _from("both", {"podSelector": {}, "namespaceSelector": {}}),
    _from(
        "bad selectors",
        {
            "podSelector": {"matchLabels": {"a b": "c"}},
            "namespaceSelector": {"matchLabels": {"a b": "c"}},
        },
    ),
    _from("block", {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}),
    _from("block bad", {"ipBlock": {"cidr": "x"}}),
    _from("block empty", {"ipBlock": {"cidr": ""}}),
    _from("block except bad", {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["x"]}}),
    _from("block except outside", {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}}),
    _from("block and pods", {"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
    _ports("plain", {"port": 80}, {"port": "http", "protocol": "UDP"}, {"port": 80, "endPort": 90}),
    _ports("bad", {"port": 0}, {"port": "A_b"}, {"protocol": "Odd"}),
    _ports("end alone", {"endPort": 90}),
    _ports("end with name", {"port": "http", "endPort": 90}),
    _ports("end below", {"port": 100, "endPort": 90}),
    _ports("end high", {"port": 100, "endPort": 70000}),
)
