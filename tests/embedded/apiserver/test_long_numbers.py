"""Numbers of thousands of digits in objects: refused or ignored with a reason, never a 500."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.embedded.virtual_cluster import VirtualCluster, until, virtual_cluster

from zonewise.api.errors import ApiError

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

LONG = "9" * 5000
CORE = "/api/v1/namespaces/default"
SETS = "/apis/apps/v1/namespaces/default/daemonsets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
RINGS = "/apis/db.example/v1/namespaces/default/rings"
SPEC: dict[str, Any] = {"containers": [{"name": "c", "image": "c"}]}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": SPEC}
INDEXED = {
    "completionMode": "Indexed",
    "completions": 3,
    "template": {"spec": SPEC | {"restartPolicy": "Never"}},
}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "address": ({"format": "ipv4"}, f"{LONG}.1.1.1"),
    "int": ({"rule": "int(self) > 0"}, LONG),
    "uint": ({"rule": "uint(self) > 0u"}, LONG),
    "cidr": ({"rule": "isCIDR(self)"}, f"10.0.0.0/{LONG}"),
    "version": ({"rule": "semver(self).major() > 0"}, f"{LONG}.0.0"),
    "early": ({"rule": "isSemver(self)"}, f"1.0.0-{LONG}"),
    "time": ({"rule": "duration(self) > duration('1s')"}, f"{LONG}s"),
}


def schema(given: dict[str, Any]) -> dict[str, Any]:
    """A string with a format, or with a rule."""
    rules = [{"rule": given["rule"]}] if "rule" in given else []
    more = {"x-kubernetes-validations": rules} if rules else given
    return {"type": "string", "maxLength": 6000} | more


async def code(cluster: VirtualCluster, path: str, body: dict[str, Any]) -> int:
    """The status of a POST."""
    try:
        answer = await cluster.client.raw("POST", path, body=msgspec.json.encode(body))
    except ApiError as error:
        return error.status.code
    return answer.status


async def test_built_in_kinds_refuse_or_ignore_them() -> None:
    """A number that is too long is invalid where a number is required, and ignored elsewhere."""
    annotations = {"controller.kubernetes.io/pod-deletion-cost": LONG}
    pod = {"metadata": {"name": "p", "annotations": annotations}, "spec": SPEC}
    old = {"deprecated.daemonset.template.generation": LONG}
    selector = {"matchLabels": {"a": "b"}}
    daemons = {
        "metadata": {"name": "d", "annotations": old},
        "spec": {"selector": selector, "template": TEMPLATE},
    }
    policy = {"successPolicy": {"rules": [{"succeededIndexes": LONG}]}}
    job = {"metadata": {"name": "j"}, "spec": INDEXED | policy}
    async with virtual_cluster({}) as cluster:
        assert await code(cluster, f"{CORE}/pods", pod) == 422
        assert await code(cluster, JOBS, job) == 422
        assert await code(cluster, SETS, daemons) == 201
        for number, version in enumerate((LONG, "²")):
            body = {"metadata": {"name": f"c{number}", "resourceVersion": version}}
            assert await code(cluster, f"{CORE}/configmaps", body) == 201


async def test_formats_and_rules_of_custom_resources_refuse_them() -> None:
    """A format or a rule that reads a number fails for one that is too long."""
    properties = {name: schema(given) for name, (given, _) in FIELDS.items()}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {
                "type": "object",
                "properties": {"spec": {"type": "object", "properties": properties}},
            }
        },
    }
    definition = {
        "metadata": {"name": "rings.db.example"},
        "spec": {
            "group": "db.example",
            "names": {"kind": "Ring", "plural": "rings"},
            "scope": "Namespaced",
            "versions": [version],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    async with virtual_cluster({}) as cluster:
        assert await code(cluster, path, definition) == 201
        await until(lambda: cluster.server.registry.by_kind("db.example/v1", "Ring") is not None)
        for name, (_, value) in FIELDS.items():
            head = {"apiVersion": "db.example/v1", "kind": "Ring", "metadata": {"name": name}}
            assert (name, await code(cluster, RINGS, head | {"spec": {name: value}})) == (name, 422)
