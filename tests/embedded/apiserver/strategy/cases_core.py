"""Valid and invalid ConfigMaps, Secrets, ServiceAccounts, Nodes, Namespaces, Events, Leases,
quotas.
"""

from __future__ import annotations

from typing import Any

from tests.embedded.apiserver.strategy.case_runner import Case, Obj, Step

CONFIGS = "/api/v1/namespaces/{ns}/configmaps"
SECRETS = "/api/v1/namespaces/{ns}/secrets"
ACCOUNTS = "/api/v1/namespaces/{ns}/serviceaccounts"
NODES = "/api/v1/nodes"
SPACES = "/api/v1/namespaces"
EVENTS = "/api/v1/namespaces/{ns}/events"
NEW_EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
QUOTAS = "/api/v1/namespaces/{ns}/resourcequotas"
RANGES = "/api/v1/namespaces/{ns}/limitranges"

MIB = 1024 * 1024


def put(change: Any) -> Step:
    """A PUT of the object with a change."""
    return Step("put", change)


def status(change: Any) -> Step:
    """A PUT to the status subresource."""
    return Step("status", change)


def patch(change: Any) -> Step:
    """A merge patch."""
    return Step("patch", change)


def _obj(fields: Obj, name: str = "zw-a", **meta: Any) -> Obj:
    return {"metadata": {"name": name, **meta}, **fields}


def _config(label: str, fields: Obj, *steps: Step) -> Case:
    return Case(f"configmap {label}", CONFIGS, _obj(fields), steps)


def _secret(label: str, fields: Obj, *steps: Step, **meta: Any) -> Case:
    return Case(f"secret {label}", SECRETS, _obj(fields, **meta), steps)


def _account(label: str, fields: Obj, *steps: Step) -> Case:
    return Case(f"account {label}", ACCOUNTS, _obj(fields), steps)


def _node(label: str, fields: Obj, *steps: Step, **meta: Any) -> Case:
    return Case(f"node {label}", NODES, _obj(fields, name="zw-node", **meta), steps)


def _taints(*taints: Obj) -> Obj:
    return {"spec": {"taints": list(taints)}}


def _event(label: str, fields: Obj, *steps: Step) -> Case:
    return Case(f"event {label}", EVENTS, _obj(fields), steps)


def _new_event(label: str, fields: Obj, *steps: Step) -> Case:
    return Case(f"events.k8s.io {label}", NEW_EVENTS, _obj(fields), steps)


def _lease(label: str, spec: Obj, *steps: Step) -> Case:
    return Case(f"lease {label}", LEASES, _obj({"spec": spec}), steps)


def _quota(label: str, spec: Obj, *steps: Step) -> Case:
    return Case(f"quota {label}", QUOTAS, _obj({"spec": spec}), steps)


def _range(label: str, *limits: Obj) -> Case:
    return Case(f"limits {label}", RANGES, _obj({"spec": {"limits": list(limits)}}))


ABOUT = {"kind": "Pod", "name": "p", "namespace": "{ns}", "apiVersion": "v1"}
OLD = {"involvedObject": ABOUT, "reason": "Why", "message": "what", "type": "Normal"}
NEW = {
    "regarding": ABOUT,
    "reason": "Why",
    "note": "what",
    "type": "Normal",
    "action": "Did",
    "eventTime": "2026-01-02T03:04:05.000006Z",
    "reportingController": "example.com/c",
    "reportingInstance": "c-1",
}
B64 = "YQ=="

CASES: tuple[Case, ...] = (
    _config("plain", {"data": {"a": "1"}, "binaryData": {"b": B64}}),
    _config("empty", {}),
    _config("bad keys", {"data": {"a b": "1", "": "x", ".": "x", "..": "y", "..z": "q"}}),
    _config("long key", {"data": {"k" * 254: "1"}}),
    _config("bad binary keys", {"binaryData": {"a/b": B64}}),
    _config("same key in both", {"data": {"a": "1"}, "binaryData": {"a": B64}}),
    _config("not base64", {"binaryData": {"a": "%%%"}}),
    _config("too large", {"data": {"a": "x" * (MIB + 1)}}),
    _config("largest", {"data": {"a": "x" * MIB}}),
    _config("too large together", {"data": {"a": "x" * MIB}, "binaryData": {"b": B64}}),
    Case("configmap bad name", CONFIGS, {"metadata": {"name": "Bad_Name"}}),
    Case("configmap generate", CONFIGS, {"metadata": {"generateName": "Bad_"}}),
    Case("configmap bad labels", CONFIGS, _obj({}, labels={"a b": "c d", "x/y/z": ""})),
    Case("configmap bad annotations", CONFIGS, _obj({}, annotations={"a b": "c d"})),
    Case("configmap bad finalizer", CONFIGS, _obj({}, finalizers=["bare", "a b/c"])),
    Case(
        "configmap bad owner",
        CONFIGS,
        _obj({}, ownerReferences=[{"apiVersion": "v1", "kind": "", "name": "", "uid": ""}]),
    ),
    Case(
        "configmap two controllers",
        CONFIGS,
        _obj(
            {},
            ownerReferences=[
                {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1", "controller": True},
                {"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "2", "controller": True},
            ],
        ),
    ),
    _config(
        "immutable then data",
        {"data": {"a": "1"}, "immutable": True},
        put({"data": {"a": "2"}}),
        put({"binaryData": {"z": B64}}),
        put({"immutable": False}),
        put({"immutable": None}),
        put({"metadata": {"labels": {"x": "y"}}}),
        patch({"data": {"a": "1"}}),
    ),
    _config(
        "mutable then frozen",
        {"data": {"a": "1"}, "immutable": False},
        put({"immutable": True}),
        put({"immutable": False, "data": {"c": "d"}}),
    ),
    _config(
        "update bad key",
        {"data": {"a": "1"}},
        put({"data": {"a b": "1"}}),
        put({"metadata": {"uid": "zzz"}}),
        put({"metadata": {"name": "other"}}),
        put({"metadata": {"namespace": "other"}}),
        put({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}),
        put({"metadata": {"generation": 7}}),
        put({"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}),
        put({"metadata": {"resourceVersion": "1"}}),
    ),
    _secret("plain", {"data": {"a": B64}, "stringData": {"b": "x"}}),
    _secret("string wins", {"data": {"a": B64}, "stringData": {"a": "x"}}),
    _secret("bad keys", {"data": {"a b": B64}, "stringData": {"c d": "x"}}),
    _secret("too large", {"stringData": {"a": "x" * (MIB + 1)}}),
    _secret(
        "type change",
        {"type": "Opaque"},
        put({"type": "example.com/other"}),
        put({"type": None}),
        put({"type": ""}),
    ),
    _secret("custom type", {"type": "example.com/other"}, put({"stringData": {"a": "b"}})),
    _secret("tls empty", {"type": "kubernetes.io/tls"}),
    _secret("tls half", {"type": "kubernetes.io/tls", "stringData": {"tls.crt": "x"}}),
    _secret(
        "tls junk", {"type": "kubernetes.io/tls", "stringData": {"tls.crt": "x", "tls.key": "y"}}
    ),
    _secret(
        "tls then less",
        {"type": "kubernetes.io/tls", "stringData": {"tls.crt": "x", "tls.key": "y"}},
        put({"data": {"tls.crt": None}}),
    ),
    _secret("basic empty", {"type": "kubernetes.io/basic-auth"}),
    _secret("basic", {"type": "kubernetes.io/basic-auth", "stringData": {"username": "u"}}),
    _secret("ssh empty", {"type": "kubernetes.io/ssh-auth"}),
    _secret("ssh blank", {"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": ""}}),
    _secret("ssh", {"type": "kubernetes.io/ssh-auth", "stringData": {"ssh-privatekey": "u"}}),
    _secret("dockercfg empty", {"type": "kubernetes.io/dockercfg"}),
    _secret(
        "dockercfg junk", {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "{"}}
    ),
    _secret(
        "dockercfg list", {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "[]"}}
    ),
    _secret("dockercfg", {"type": "kubernetes.io/dockercfg", "stringData": {".dockercfg": "{}"}}),
    _secret("dockerconfigjson empty", {"type": "kubernetes.io/dockerconfigjson"}),
    _secret(
        "dockerconfigjson junk",
        {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "no"}},
    ),
    _secret(
        "dockerconfigjson",
        {
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": '{"auths":{}}'},
        },
    ),
    _secret("token without account", {"type": "kubernetes.io/service-account-token"}),
    _secret(
        "token with account",
        {"type": "kubernetes.io/service-account-token"},
        put({"metadata": {"annotations": {"kubernetes.io/service-account.name": None}}}),
        annotations={"kubernetes.io/service-account.name": "some"},
    ),
    _secret(
        "bootstrap", {"type": "bootstrap.kubernetes.io/token", "stringData": {"token-id": "x"}}
    ),
    _secret(
        "immutable",
        {"stringData": {"a": "1"}, "immutable": True},
        put({"data": {"a": "Mg=="}}),
        put({"immutable": None}),
        put({"stringData": {"n": "1"}}),
        put({"metadata": {"labels": {"x": "y"}}}),
        put({"type": "x"}),
    ),
    _secret(
        "by type",
        {"type": "example.com/other"},
        Step("get", "?fieldSelector=type=example.com/other"),
        Step("get", "?fieldSelector=type=Opaque"),
        Step("get", "?fieldSelector=metadata.name=zw-a,type!=x"),
        Step("get", "?fieldSelector=data.a=1"),
    ),
    _account(
        "plain",
        {
            "automountServiceAccountToken": False,
            "secrets": [{"name": "s"}],
            "imagePullSecrets": [{"name": "i"}],
        },
        put({"secrets": [{"name": "t"}]}),
        put({"automountServiceAccountToken": True}),
    ),
    _account("odd secrets", {"secrets": [{"name": ""}, {"name": "s"}, {"name": "s"}]}),
    Case("account bad name", ACCOUNTS, {"metadata": {"name": "A_B"}}),
    _node("plain", {}),
    _node(
        "spec",
        {
            "spec": {
                "podCIDR": "10.0.0.0/24",
                "unschedulable": True,
                "providerID": "p://1",
                "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
            }
        },
        put({"spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
        put({"spec": {"providerID": "p://2"}}),
        put({"spec": {"unschedulable": None}}),
        put({"spec": {"taints": None}}),
        put({"spec": {"externalID": "x"}}),
    ),
    _node(
        "set later",
        {},
        put({"spec": {"podCIDR": "10.1.0.0/24"}}),
        put({"spec": {"providerID": "p://2"}}),
        put({"spec": {"podCIDR": None, "podCIDRs": None}}),
        put({"metadata": {"labels": {"a": "b"}, "annotations": {"x": "y"}}}),
    ),
    _node("cidrs differ", {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.1.0.0/24"]}}),
    _node("cidr junk", {"spec": {"podCIDR": "x"}}),
    _node("cidrs junk", {"spec": {"podCIDRs": ["x", "10.0.0.0/24"]}}),
    _node("cidrs two of a family", {"spec": {"podCIDRs": ["10.0.0.0/24", "10.1.0.0/24"]}}),
    _node("cidrs dual", {"spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64"]}}),
    _node("cidrs dual same", {"spec": {"podCIDRs": ["10.0.0.0/24", "fd00::/64", "fd01::/64"]}}),
    _node("taint no key", _taints({"effect": "NoSchedule"})),
    _node("taint bad key", _taints({"key": "a b", "effect": "NoSchedule"})),
    _node("taint bad value", _taints({"key": "a", "value": "b c", "effect": "NoSchedule"})),
    _node("taint no effect", _taints({"key": "a"})),
    _node("taint bad effect", _taints({"key": "a", "effect": "Never"})),
    _node(
        "taint twice",
        _taints(
            {"key": "a", "effect": "NoSchedule"}, {"key": "a", "value": "b", "effect": "NoSchedule"}
        ),
    ),
    _node(
        "taint two effects",
        _taints({"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoExecute"}),
    ),
    _node(
        "status on create",
        {
            "status": {
                "capacity": {"cpu": "4"},
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1"},
            }
        },
    ),
    _node(
        "capacity",
        {},
        status(
            {
                "status": {
                    "capacity": {"cpu": "4", "memory": "1Gi", "pods": "10"},
                    "allocatable": {"cpu": "3500m"},
                }
            }
        ),
        status({"status": {"capacity": {"cpu": "-1"}}}),
        status({"status": {"capacity": {"pods": "1500m"}}}),
        status({"status": {"capacity": {"bad name": "1"}}}),
        status({"status": {"capacity": {"unknown": "1"}}}),
        status({"status": {"allocatable": {"cpu": "-3"}}}),
    ),
    _node(
        "addresses",
        {},
        status(
            {
                "status": {
                    "addresses": [
                        {"type": "InternalIP", "address": "10.0.0.1"},
                        {"type": "Hostname", "address": "h"},
                    ]
                }
            }
        ),
        status(
            {
                "status": {
                    "addresses": [
                        {"type": "InternalIP", "address": "10.0.0.1"},
                        {"type": "InternalIP", "address": "10.0.0.1"},
                    ]
                }
            }
        ),
        status({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        status({"status": {"phase": "Running"}}),
        status({"spec": {"unschedulable": True}}),
        status({"metadata": {"labels": {"via": "status"}}}),
    ),
    _node(
        "status keeps spec",
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        status({"spec": {"taints": None}}),
        status(
            {
                "status": {
                    "volumesAttached": [{"name": "a", "devicePath": "b"}],
                    "volumesInUse": ["a"],
                }
            }
        ),
        status({"status": {"images": [{"names": ["x"], "sizeBytes": 3}]}}),
        status({"status": {"images": [{"names": []}]}}),
        status({"status": {"config": {"active": {}}}}),
    ),
    _node(
        "config source",
        {
            "spec": {
                "configSource": {
                    "configMap": {"name": "a", "namespace": "b", "kubeletConfigKey": "c"}
                }
            }
        },
    ),
    _node(
        "cordoned",
        {"spec": {"unschedulable": True}},
        Step("get", "?fieldSelector=metadata.name=zw-node,spec.unschedulable=true"),
        Step("get", "?fieldSelector=metadata.name=zw-node,spec.unschedulable=false"),
        Step("get", "?fieldSelector=spec.podCIDR=x"),
    ),
    _node(
        "avoid annotation",
        {},
        annotations={"scheduler.alpha.kubernetes.io/preferAvoidPods": "junk"},
    ),
    Case("node bad name", NODES, {"metadata": {"name": "Node_1"}}),
    Case("node with namespace", NODES, {"metadata": {"name": "zw-node", "namespace": "default"}}),
    Case(
        "namespace plain",
        SPACES,
        {"metadata": {"name": "zw-space", "labels": {"a": "b"}}},
        (
            put({"metadata": {"labels": {"a": "c"}}}),
            put({"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}}),
            put({"metadata": {"labels": {"kubernetes.io/metadata.name": None}}}),
            put({"spec": {"finalizers": ["kubernetes", "x.io/y"]}}),
            put({"spec": {"finalizers": []}}),
            status({"status": {"phase": "Terminating"}}),
            status({"status": {"phase": "Odd"}}),
            status({"status": {"conditions": [{"type": "X", "status": "True"}]}}),
        ),
    ),
    Case(
        "namespace wrong name label",
        SPACES,
        {"metadata": {"name": "zw-space2", "labels": {"kubernetes.io/metadata.name": "x"}}},
    ),
    Case("namespace bad name", SPACES, {"metadata": {"name": "a.b"}}),
    Case(
        "namespace bad finalizer",
        SPACES,
        {"metadata": {"name": "zw-space3"}, "spec": {"finalizers": ["bare", "a b/c"]}},
    ),
    Case(
        "namespace terminating",
        SPACES,
        {"metadata": {"name": "zw-space4"}, "status": {"phase": "Terminating"}},
    ),
    _event(
        "plain",
        OLD,
        put({"message": "other"}),
        put({"involvedObject": {"name": "q"}}),
        put({"count": 3, "lastTimestamp": "2026-01-02T03:04:05Z"}),
    ),
    _event("least", {"involvedObject": {"namespace": "{ns}"}}),
    _event(
        "other namespace",
        OLD | {"involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}},
    ),
    _event("no namespace", OLD | {"involvedObject": {"kind": "Pod", "name": "p"}}),
    _event(
        "cluster kind", OLD | {"involvedObject": {"kind": "Node", "name": "p", "apiVersion": "v1"}}
    ),
    _event(
        "cluster kind placed",
        OLD
        | {
            "involvedObject": {"kind": "Node", "name": "p", "apiVersion": "v1", "namespace": "{ns}"}
        },
    ),
    _event("odd type", OLD | {"type": "Odd"}),
    _event("with time", OLD | {"eventTime": "2026-01-02T03:04:05.000006Z"}),
    _event(
        "with time and all",
        OLD
        | {
            "eventTime": "2026-01-02T03:04:05.000006Z",
            "reportingComponent": "example.com/c",
            "reportingInstance": "i",
            "action": "Did",
        },
    ),
    _event(
        "with time and odd",
        OLD
        | {
            "eventTime": "2026-01-02T03:04:05.000006Z",
            "reportingComponent": "a b",
            "reportingInstance": "i" * 129,
            "action": "x" * 129,
            "reason": "y" * 129,
            "message": "z" * 1025,
        },
    ),
    _event("long reason", OLD | {"reason": "y" * 129, "message": "z" * 1025}),
    _event("bad time", OLD | {"eventTime": "2026-01-02T03:04:05Z"}),
    _event(
        "series", OLD | {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}}
    ),
    _event(
        "source",
        OLD
        | {
            "source": {"component": "c", "host": "h"},
            "firstTimestamp": "2026-01-02T03:04:05Z",
            "count": 4,
        },
        Step("get", "?fieldSelector=source=c"),
        Step("get", "?fieldSelector=involvedObject.name=p,reason=Why,type=Normal"),
        Step("get", "?fieldSelector=involvedObject.kind=Node"),
        Step("get", "?fieldSelector=message=x"),
    ),
    Case("event bad name", EVENTS, {"metadata": {"name": "A_b"}, **OLD}),
    _new_event(
        "plain",
        NEW,
        put({"note": "other"}),
        put({"metadata": {"labels": {"a": "b"}}}),
        put({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000006Z"}}),
        put({"action": "Else"}),
        put({"regarding": {"name": "q"}}),
        put({"reason": "Else"}),
        put({"type": "Warning"}),
        put({"reportingController": "x.io/z"}),
        put({"reportingInstance": "n"}),
        put({"related": ABOUT}),
        put({"eventTime": "2026-01-02T03:04:09.000006Z"}),
    ),
    _new_event("empty", {}),
    _new_event("no time", {k: v for k, v in NEW.items() if k != "eventTime"}),
    _new_event("no reason", NEW | {"reason": "", "action": ""}),
    _new_event(
        "odd",
        NEW
        | {
            "reportingController": "a b",
            "reportingInstance": "i" * 129,
            "action": "x" * 129,
            "reason": "y" * 129,
            "note": "z" * 1025,
            "type": "Odd",
        },
    ),
    _new_event(
        "series of one",
        NEW | {"series": {"count": 1, "lastObservedTime": "2026-01-02T03:04:05.000006Z"}},
    ),
    _new_event("series without time", NEW | {"series": {"count": 2, "lastObservedTime": None}}),
    _new_event(
        "deprecated",
        NEW
        | {
            "deprecatedSource": {"component": "c"},
            "deprecatedCount": 2,
            "deprecatedFirstTimestamp": "2026-01-02T03:04:05Z",
            "deprecatedLastTimestamp": "2026-01-02T03:04:05Z",
        },
    ),
    _new_event(
        "other namespace", NEW | {"regarding": {"kind": "Pod", "name": "p", "namespace": "other"}}
    ),
    _new_event("node", NEW | {"regarding": {"kind": "Node", "name": "p"}}),
    _new_event(
        "selected",
        NEW,
        Step("get", "?fieldSelector=regarding.name=p,reason=Why"),
        Step("get", "?fieldSelector=reportingController=example.com/c"),
        Step("get", "?fieldSelector=involvedObject.name=p"),
        Step("get", "?fieldSelector=type=Normal"),
        Step("get", "?fieldSelector=regarding.kind=Node"),
    ),
    _lease(
        "plain",
        {
            "holderIdentity": "a",
            "leaseDurationSeconds": 15,
            "renewTime": "2026-01-02T03:04:05.000006Z",
            "acquireTime": "2026-01-02T03:04:05.000006Z",
            "leaseTransitions": 1,
        },
        put({"spec": {"holderIdentity": "b"}}),
        put({"spec": {"leaseTransitions": 0}}),
        put({"metadata": {"resourceVersion": ""}}),
        put({"spec": {"leaseDurationSeconds": 0}}),
    ),
    _lease("empty", {}),
    _lease("bad numbers", {"leaseDurationSeconds": 0, "leaseTransitions": -1}),
    _lease("bad duration", {"leaseDurationSeconds": -5}),
    _lease("short time", {"renewTime": "2026-01-02T03:04:05Z"}),
    _lease("milli time", {"renewTime": "2026-01-02T03:04:05.123Z"}),
    _lease("nano time", {"renewTime": "2026-01-02T03:04:05.123456789Z"}),
    _lease("offset time", {"renewTime": "2026-01-02T03:04:05.123456+01:00"}),
    _lease("strategy", {"strategy": "OldestEmulationVersion"}),
    _lease("preferred", {"preferredHolder": "x"}),
    _lease("empty holder", {"holderIdentity": ""}),
    _lease(
        "strategy and preferred",
        {"strategy": "OldestEmulationVersion", "preferredHolder": "x", "holderIdentity": "h"},
    ),
    _lease("odd strategy", {"strategy": "odd"}),
    Case("lease bad name", LEASES, {"metadata": {"name": "A b"}}),
    _quota(
        "plain",
        {
            "hard": {
                "cpu": "4",
                "pods": "10",
                "requests.memory": "1Gi",
                "count/deployments.apps": "3",
                "services.nodeports": "1",
            }
        },
        put({"spec": {"hard": {"cpu": "5"}}}),
        status({"status": {"hard": {"cpu": "4"}, "used": {"cpu": "1"}}}),
        status({"status": {"hard": {"cpu": "-4"}, "used": {"bad name": "1"}}}),
        put({"status": {"used": None}}),
        put({"spec": {"scopes": ["BestEffort"]}}),
    ),
    _quota("fraction", {"hard": {"pods": "1.5"}}),
    _quota("negative", {"hard": {"cpu": "-1"}}),
    _quota("unknown", {"hard": {"bananas": "1", "bad name": "1", "example.com/x": "1"}}),
    _quota(
        "extended",
        {
            "hard": {
                "requests.nvidia.com/gpu": "1",
                "limits.nvidia.com/gpu": "1",
                "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
            }
        },
    ),
    _quota(
        "scopes",
        {"hard": {"pods": "1"}, "scopes": ["Terminating"]},
        put({"spec": {"scopes": ["NotTerminating"]}}),
    ),
    _quota("both scopes", {"hard": {"pods": "1"}, "scopes": ["Terminating", "NotTerminating"]}),
    _quota("both effort", {"hard": {"pods": "1"}, "scopes": ["BestEffort", "NotBestEffort"]}),
    _quota("odd scope", {"hard": {"pods": "1"}, "scopes": ["Odd"]}),
    _quota("scope resource", {"hard": {"services": "1"}, "scopes": ["BestEffort"]}),
    _quota("best effort cpu", {"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}),
    _quota(
        "selector",
        {
            "hard": {"pods": "1"},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
                ]
            },
        },
    ),
    _quota(
        "selector odd",
        {
            "hard": {"pods": "1"},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In"},
                    {"scopeName": "Odd", "operator": "Maybe"},
                    {"scopeName": "Terminating", "operator": "In", "values": ["a"]},
                    {"scopeName": "PriorityClass", "operator": "Exists", "values": ["a"]},
                ]
            },
        },
    ),
    Case("quota bad name", QUOTAS, {"metadata": {"name": "A b"}}),
    _range(
        "plain",
        {
            "type": "Container",
            "max": {"cpu": "2"},
            "min": {"cpu": "100m"},
            "default": {"cpu": "1"},
            "defaultRequest": {"cpu": "500m"},
            "maxLimitRequestRatio": {"cpu": "4"},
        },
    ),
    _range("pod", {"type": "Pod", "max": {"cpu": "2"}}),
    _range("pod default", {"type": "Pod", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1"}}),
    _range(
        "claim",
        {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}, "min": {"storage": "1Gi"}},
    ),
    _range("claim empty", {"type": "PersistentVolumeClaim"}),
    _range("twice", {"type": "Pod", "max": {"cpu": "2"}}, {"type": "Pod", "max": {"cpu": "2"}}),
    _range("crossed", {"type": "Container", "max": {"cpu": "1"}, "min": {"cpu": "2"}}),
    _range("default above", {"type": "Container", "max": {"cpu": "1"}, "default": {"cpu": "2"}}),
    _range(
        "request above default",
        {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "2"}},
    ),
    _range(
        "request below min",
        {"type": "Container", "min": {"cpu": "1"}, "defaultRequest": {"cpu": "500m"}},
    ),
    _range("ratio", {"type": "Container", "maxLimitRequestRatio": {"cpu": "500m"}}),
    _range(
        "ratio above",
        {
            "type": "Container",
            "max": {"cpu": "2"},
            "min": {"cpu": "1"},
            "maxLimitRequestRatio": {"cpu": "3"},
        },
    ),
    _range("odd type", {"type": "Odd", "max": {"cpu": "2"}}),
    _range("custom type", {"type": "example.com/x", "max": {"cpu": "2"}}),
    _range("odd resource", {"type": "Container", "max": {"bananas": "2", "a b": "1"}}),
    _range("no type", {"max": {"cpu": "2"}}),
    _range("only max", {"type": "Container", "max": {"cpu": "2"}}),
)
