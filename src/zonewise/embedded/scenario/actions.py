"""What can be done to a cluster in a scenario, as sentences.

::

    fail zone a                     heal zone a              also: node a-1
    scale shop/web to 30            restart shop/web         update shop/web to shop/web:2
    cordon a-1                      uncordon a-1             drain a-1
    add node a-4 in a with 8 cpu    remove node a-4
    takeover set a by b,c           takeover clear a         with cluster: {volumes: true}

Each is what a user would do with ``kubectl`` or ``zonewise``, by the same requests. A drain
continues until nothing is left to evict: where a budget refuses, it retries every ``PAUSE``
seconds. So it takes long, and is awaited beside the scenario's other steps.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from zonewise.api import Node, Pod
from zonewise.api.errors import ConfigError, NotFound, TooManyRequests
from zonewise.api.objects.apps import DaemonSet
from zonewise.api.unstructured import unstructured
from zonewise.csi.takeover.status import CONFIG, KEY
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet import FAILED
from zonewise.embedded.scenario.assertions import Measurements
from zonewise.embedded.seed.nodes import node_manifest
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
from zonewise.storage.domains import DomainLabels
from zonewise.storage.takeover.editing import with_takeover_of
from zonewise.topology import zone_of

PAUSE = 5.0
RESTARTED = "kubectl.kubernetes.io/restartedAt"

_NAME = r"(?P<name>[-a-z0-9.]+)"
_WORKLOAD = r"(?P<namespace>[-a-z0-9.]+)/(?P<name>[-a-z0-9.]+)"


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Where actions are done: a cluster and what is known of it. ``now`` is a time as text."""

    cluster: EmbeddedCluster
    measurements: Measurements
    now: Callable[[], str]


Words = dict[str, str]
Act = Callable[[ActionContext, Words], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Action:
    """A sentence, understood."""

    text: str
    words: Words
    act: Act

    @classmethod
    def parse(cls, text: str) -> Action:
        """Understand a sentence."""
        for pattern, act in _VERBS:
            found = pattern.fullmatch(" ".join(text.split()))
            if found is not None:
                return cls(found.group(), found.groupdict(), act)
        raise ConfigError(f'unknown action "{text}"')

    @property
    def lasting(self) -> bool:
        """Whether it takes long, and others may run meanwhile."""
        return self.act is _drain

    async def do(self, stage: ActionContext) -> None:
        """Do it; raises the API server's error."""
        await self.act(stage, self.words)


async def _break(stage: ActionContext, words: Words) -> None:
    value = "true" if words["verb"] == "fail" else None
    nodes = [
        node.metadata.name
        for node in stage.measurements.nodes
        if words["name"] == (zone_of(node) if words["what"] == "zone" else node.metadata.name)
    ]
    if not nodes:
        raise ConfigError(f"there is no {words['what']} {words['name']}")
    body = {"metadata": {"annotations": {FAILED: value}}}
    client = stage.cluster.client
    await asyncio.gather(*(client.patch(Node, name, None, body) for name in nodes))


async def _scale(stage: ActionContext, words: Words) -> None:
    await _change(stage, words, {"spec": {"replicas": int(words["number"])}})


async def _restart(stage: ActionContext, words: Words) -> None:
    template = {"metadata": {"annotations": {RESTARTED: stage.now()}}}
    await _change(stage, words, {"spec": {"template": template}})


async def _update(stage: ActionContext, words: Words) -> None:
    workload = stage.measurements.workload((words["namespace"], words["name"]))
    template = msgspec.json.decode(workload.spec.template) if workload else {}
    names = [container["name"] for container in template.get("spec", {}).get("containers", ())]
    template = {"spec": {"containers": [{"name": "".join(names[:1]), "image": words["image"]}]}}
    await _change(stage, words, {"spec": {"template": template}})


async def _change(stage: ActionContext, words: Words, body: dict[str, Any]) -> None:
    namespace, name = words["namespace"], words["name"]
    workload = stage.measurements.workload((namespace, name))
    if workload is None:
        raise ConfigError(f"there is no workload {namespace}/{name}")
    await stage.cluster.client.patch(type(workload), name, namespace, body, kind="strategic")


async def _cordon(stage: ActionContext, words: Words) -> None:
    body = {"spec": {"unschedulable": True if words["verb"] == "cordon" else None}}
    try:
        await stage.cluster.client.patch(Node, words["name"], None, body)
    except NotFound:
        raise _no_node(words) from None


async def _drain(stage: ActionContext, words: Words) -> None:
    stage.measurements.drains += 1
    try:
        await _cordon(stage, {**words, "verb": "cordon"})
        while pods := [pod for pod in stage.measurements.pods if _drained(pod, words["name"])]:
            for pod in pods:
                if pod.metadata.deletion_timestamp is None:
                    await _evict(stage, pod)
            await asyncio.sleep(PAUSE)
    finally:
        stage.measurements.drains -= 1


async def _evict(stage: ActionContext, pod: Pod) -> None:
    meta = pod.metadata
    try:
        await stage.cluster.client.evict(meta.name, meta.namespace, uid=meta.uid)
    except (NotFound, TooManyRequests):
        return


def _drained(pod: Pod, node: str) -> bool:
    owner = pod.metadata.controller
    stays = owner is not None and owner.kind == DaemonSet.resource.kind
    return pod.spec.node_name == node and not stays


async def _add(stage: ActionContext, words: Words) -> None:
    manifest = node_manifest(words["name"], words["zone"], words["cpu"])
    await stage.cluster.client.create(unstructured(Node.resource)(manifest))


async def _remove(stage: ActionContext, words: Words) -> None:
    try:
        await stage.cluster.client.delete(Node, words["name"])
    except NotFound:
        raise _no_node(words) from None


def _no_node(words: Words) -> ConfigError:
    return ConfigError(f"there is no node {words['name']}")


async def _take_over(stage: ActionContext, words: Words) -> None:
    by = words.get("by")
    client = stage.cluster.client
    try:
        found = await client.get(ConfigMap, CONFIG, NAMESPACE)
    except NotFound:
        raise ConfigError("this cluster has no driver; say cluster: {volumes: true}") from None
    change = {words["name"]: tuple(by.split(",")) if by else None}
    text = with_takeover_of(str(found.get("data", KEY)), change, DomainLabels(""))
    body = {
        "metadata": {"resourceVersion": found.metadata.resource_version},
        "data": {KEY: text},
    }
    await client.patch(ConfigMap, CONFIG, NAMESPACE, body)


_VERBS: tuple[tuple[re.Pattern[str], Act], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (rf"(?P<verb>fail|heal) (?P<what>zone|node) {_NAME}", _break),
        (rf"scale {_WORKLOAD} to (?P<number>[0-9]+)", _scale),
        (rf"restart {_WORKLOAD}", _restart),
        (rf"update {_WORKLOAD} to (?P<image>\S+)", _update),
        (rf"(?P<verb>cordon|uncordon) {_NAME}", _cordon),
        (rf"drain {_NAME}", _drain),
        (rf"add node {_NAME} in (?P<zone>[-a-z0-9]+) with (?P<cpu>[0-9.]+m?) cpu", _add),
        (rf"remove node {_NAME}", _remove),
        (rf"takeover set {_NAME} by (?P<by>[-a-z0-9.,/]+)", _take_over),
        (rf"takeover clear {_NAME}", _take_over),
    )
)
