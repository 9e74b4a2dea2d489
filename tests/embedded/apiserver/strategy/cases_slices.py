"""Valid and invalid EndpointSlices and Endpoints."""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step
from tests.embedded.apiserver.strategy.cases_core import patch, put

SLICES = "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices"
ENDPOINTS = "/api/v1/namespaces/{ns}/endpoints"


def _slice(label: str, fields: Obj, *steps: Step, kind: Any = "IPv4", **meta: Any) -> Case:
    body = {"metadata": {"name": "zw-a", **meta}, **fields}
    if kind is not None:
        body["addressType"] = kind
    return Case(f"slice {label}", SLICES, body, steps)


def _endpoint(**fields: Any) -> Obj:
    return {"endpoints": [{"addresses": ["10.0.0.1"], **fields}]}


def _ports(*ports: Obj) -> Obj:
    return {"endpoints": [], "ports": list(ports)}


def _hints(*zones: str) -> Obj:
    return _endpoint(hints={"forZones": [{"name": zone} for zone in zones]})


def _nodes(*nodes: str) -> Obj:
    return _endpoint(hints={"forNodes": [{"name": node} for node in nodes]})


def _points(label: str, *subsets: Obj, steps: tuple[Step, ...] = (), **meta: Any) -> Case:
    body = {"metadata": {"name": "zw-a", **meta}, "subsets": list(subsets)}
    return Case(f"endpoints {label}", ENDPOINTS, body, steps)


CASES: tuple[Case, ...] = (
    _slice(
        "plain",
        _endpoint(conditions={"ready": True}, zone="a", nodeName="n", hostname="h")
        | {"ports": [{"name": "http", "port": 80}]},
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"metadata": {"annotations": {"a": "b"}}}),
        put({"endpoints": []}),
        patch({"ports": [{"name": "x", "port": 81}]}),
        put({"addressType": "IPv6"}),
        put({"metadata": {"labels": {"a": None}}}),
        patch({}),
    ),
    _slice("no type", {"endpoints": []}, kind=None),
    _slice("empty type", {"endpoints": []}, kind=""),
    _slice("odd type", _endpoint(), kind="Odd"),
    _slice("IP type", _endpoint(), kind="IP"),
    _slice("null endpoints", {"endpoints": None}),
    _slice("no endpoints", {}),
    _slice("no addresses", {"endpoints": [{"addresses": []}]}),
    _slice("v6 in v4", {"endpoints": [{"addresses": ["fd00::1"]}]}),
    _slice("v4 in v6", _endpoint(), kind="IPv6"),
    _slice("v6", {"endpoints": [{"addresses": ["fd00::1"]}]}, kind="IPv6"),
    _slice("v6 mapped", {"endpoints": [{"addresses": ["::ffff:10.0.0.1"]}]}, kind="IPv6"),
    _slice("v6 long", {"endpoints": [{"addresses": ["fd00:0:0::1"]}]}, kind="IPv6"),
    _slice("name in v4", {"endpoints": [{"addresses": ["example.com"]}]}),
    _slice("leading zero", {"endpoints": [{"addresses": ["010.0.0.1"]}]}),
    _slice(
        "special",
        {
            "endpoints": [
                {"addresses": ["127.0.0.1"]},
                {"addresses": ["0.0.0.0"]},
                {"addresses": ["169.254.1.1"]},
                {"addresses": ["224.0.0.1"]},
                {"addresses": ["239.0.0.1"]},
            ]
        },
    ),
    _slice(
        "special v6",
        {
            "endpoints": [
                {"addresses": ["::1"]},
                {"addresses": ["::"]},
                {"addresses": ["fe80::1"]},
                {"addresses": ["ff02::1"]},
            ]
        },
        kind="IPv6",
    ),
    _slice("fqdn", {"endpoints": [{"addresses": ["example.com"]}]}, kind="FQDN"),
    _slice(
        "fqdn bad",
        {
            "endpoints": [
                {"addresses": ["a_b"]},
                {"addresses": ["single"]},
                {"addresses": ["10.0.0.1"]},
            ]
        },
        kind="FQDN",
    ),
    _slice("100 addresses", {"endpoints": [{"addresses": [f"10.0.0.{i}" for i in range(1, 101)]}]}),
    _slice("101 addresses", {"endpoints": [{"addresses": [f"10.0.0.{i}" for i in range(1, 102)]}]}),
    _slice("same address twice", {"endpoints": [{"addresses": ["10.0.0.1", "10.0.0.1"]}]}),
    _slice(
        "same endpoint twice",
        {"endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.1"]}]},
    ),
    _slice(
        "1000 endpoints",
        {"endpoints": [{"addresses": [f"10.0.{i // 250}.{i % 250 + 1}"]} for i in range(1000)]},
    ),
    _slice(
        "1001 endpoints",
        {"endpoints": [{"addresses": [f"10.0.{i // 250}.{i % 250 + 1}"]} for i in range(1001)]},
    ),
    _slice("8 zones", _hints(*"abcdefgh")),
    _slice("9 zones", _hints(*"abcdefghi")),
    _slice("zone twice", _hints("a", "a")),
    _slice("zone empty", _hints("")),
    _slice("zone bad", _hints("a b")),
    _slice("8 nodes", _nodes(*"abcdefgh")),
    _slice("9 nodes", _nodes(*"abcdefghi")),
    _slice("node twice", _nodes("a", "a")),
    _slice("node bad", _nodes("A b", "")),
    _slice("empty hints", _endpoint(hints={})),
    _slice("empty zones", _endpoint(hints={"forZones": []})),
    _slice("bad node name", _endpoint(nodeName="A b")),
    _slice("empty node name", _endpoint(nodeName="")),
    _slice("bad hostname", _endpoint(hostname="a.b")),
    _slice("empty hostname", _endpoint(hostname="")),
    _slice("long hostname", _endpoint(hostname="h" * 64)),
    _slice("bad zone", _endpoint(zone="a b")),
    _slice("empty zone", _endpoint(zone="")),
    _slice("topology", _endpoint(deprecatedTopology={"a": "b"})),
    _slice("bad topology", _endpoint(deprecatedTopology={"a b": "b c"})),
    _slice("topology zone", _endpoint(deprecatedTopology={"topology.kubernetes.io/zone": "b"})),
    _slice("much topology", _endpoint(deprecatedTopology={f"k{i}": "v" for i in range(17)})),
    _slice(
        "conditions", _endpoint(conditions={"ready": False, "serving": True, "terminating": True})
    ),
    _slice(
        "target", _endpoint(targetRef={"kind": "Pod", "name": "p", "namespace": "{ns}", "uid": "1"})
    ),
    _slice(
        "ports", _ports({"name": "a", "port": 80}, {"name": "b", "port": 80, "protocol": "UDP"})
    ),
    _slice("port names twice", _ports({"name": "a", "port": 80}, {"name": "a", "port": 81})),
    _slice("port unnamed", _ports({"port": 80})),
    _slice("port unnamed twice", _ports({"port": 80}, {"port": 81})),
    _slice("port bad name", _ports({"name": "A_b", "port": 80})),
    _slice("port long name", _ports({"name": "a" * 64, "port": 80})),
    _slice("port protocol", _ports({"name": "a", "port": 80, "protocol": "ICMP"})),
    _slice("port null", _ports({"name": "a"})),
    _slice("port zero", _ports({"name": "a", "port": 0})),
    _slice("port large", _ports({"name": "a", "port": 70000}, {"name": "b", "port": -1})),
    _slice("port application", _ports({"name": "a", "port": 80, "appProtocol": "a b"})),
    _slice(
        "port application fine",
        _ports({"name": "a", "port": 80, "appProtocol": "kubernetes.io/h2c"}),
    ),
    _slice("20000 ports", _ports(*({"name": f"p{i}", "port": i + 1} for i in range(20000)))),
    _slice("20001 ports", _ports(*({"name": f"p{i}", "port": i + 1} for i in range(20001)))),
    _slice("101 ports", _ports(*({"name": f"p{i}", "port": i + 1} for i in range(101)))),
    _slice("bad labels", {"endpoints": []}, labels={"a b": "c"}),
    Case(
        "slice bad name",
        SLICES,
        {"metadata": {"name": "A_b"}, "addressType": "IPv4", "endpoints": []},
    ),
    Case(
        "slice generated",
        SLICES,
        {"metadata": {"generateName": "A_b-"}, "addressType": "IPv4", "endpoints": []},
    ),
    _slice(
        "update bad",
        {"endpoints": []},
        put({"endpoints": [{"addresses": ["x"]}]}),
        put(
            {
                "endpoints": [
                    {
                        "addresses": ["10.0.0.1"],
                        "hints": {"forZones": [{"name": "a"}, {"name": "a"}]},
                    }
                ]
            }
        ),
        put({"endpoints": [{"addresses": ["010.0.0.1"]}]}),
    ),
    _points(
        "plain",
        {
            "addresses": [{"ip": "10.0.0.1", "nodeName": "n", "hostname": "h"}],
            "ports": [{"port": 80}],
        },
        steps=(
            put({"metadata": {"labels": {"a": "b"}}}),
            put({"subsets": None}),
            put({"subsets": [{"addresses": [{"ip": "x"}]}]}),
        ),
    ),
    _points("none"),
    _points("empty subset", {}),
    _points("no ports", {"addresses": [{"ip": "10.0.0.1"}]}),
    _points("not ready", {"notReadyAddresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}),
    _points(
        "bad address",
        {"addresses": [{"ip": "x"}, {"ip": ""}, {"ip": "127.0.0.1"}, {"ip": "224.0.0.5"}]},
    ),
    _points("bad hostname", {"addresses": [{"ip": "10.0.0.1", "hostname": "a.b"}]}),
    _points("bad node", {"addresses": [{"ip": "10.0.0.1", "nodeName": "A b"}]}),
    _points("v6", {"addresses": [{"ip": "fd00::1"}], "ports": [{"port": 80}]}),
    _points(
        "two unnamed ports",
        {"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}, {"port": 81}]},
    ),
    _points(
        "bad ports",
        {
            "addresses": [{"ip": "10.0.0.1"}],
            "ports": [
                {"name": "A_", "port": 0, "protocol": "X"},
                {"name": "b", "port": 70000, "appProtocol": "a b"},
            ],
        },
    ),
    _points(
        "node changes",
        {"addresses": [{"ip": "10.0.0.1", "nodeName": "n"}], "ports": [{"port": 80}]},
        steps=(
            put(
                {
                    "subsets": [
                        {
                            "addresses": [{"ip": "10.0.0.1", "nodeName": "m"}],
                            "ports": [{"port": 80}],
                        }
                    ]
                }
            ),
        ),
    ),
    _points(
        "same twice",
        {
            "addresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.1"}, {"ip": "10.0.0.1"}],
            "ports": [{"port": 80}],
        },
        {"addresses": [{"ip": "10.0.0.3"}], "ports": [{"port": 80}]},
    ),
)
