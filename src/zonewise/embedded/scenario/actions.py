"""What can be done to a cluster in a scenario, as sentences.

::

    fail zone a                     heal zone a              also: node a-1
    scale shop/web to 30            restart shop/web         update shop/web to shop/web:2
    cordon a-1                      uncordon a-1             drain a-1
    add node a-4 in a with 8 cpu    remove node a-4
    takeover set a by b,c           takeover clear a         with cluster: {volumes: true}

Each sends the requests that a user would send with ``kubectl`` or ``zonewise``. A drain continues
until nothing is left to evict: where a budget refuses, it retries every ``RETRY_SECONDS``. So it
takes long, and runs in the background of the scenario's other steps.
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
from zonewise.csi.takeover.status import CONFIG_KEY, CONFIG_MAP
from zonewise.embedded.cluster import EmbeddedCluster
from zonewise.embedded.components.kubelet.node_status import FAILED_ANNOTATION
from zonewise.embedded.scenario.assertions import Measurements
from zonewise.embedded.seed.nodes import node_manifest
from zonewise.embedded.seed.seed_marker import NAMESPACE, ConfigMap
from zonewise.storage.configuration import edit_takeover
from zonewise.storage.domains import DomainLabels
from zonewise.topology.nodes import zone_of

RETRY_SECONDS = 5.0
RESTARTED_AT = "kubectl.kubernetes.io/restartedAt"

_NAME = r"(?P<name>[-a-z0-9.]+)"
_WORKLOAD = r"(?P<namespace>[-a-z0-9.]+)/(?P<name>[-a-z0-9.]+)"


@dataclass(frozen=True, slots=True)
class ActionContext:
    """What actions work on: a cluster and its measurements. ``now`` is a time as text."""

    cluster: EmbeddedCluster
    measurements: Measurements
    now: Callable[[], str]


Words = dict[str, str]
Act = Callable[[ActionContext, Words], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Action:
    """A parsed action."""

    text: str
    words: Words
    act: Act

    @classmethod
    def parse(cls, text: str) -> Action:
        """Parse an action."""
        for pattern, act in _ACTIONS:
            match = pattern.fullmatch(" ".join(text.split()))
            if match is not None:
                return cls(match.group(), match.groupdict(), act)
        raise ConfigError(f'unknown action "{text}"')

    @property
    def runs_long(self) -> bool:
        """Whether it takes long, so that other steps are played meanwhile."""
        return self.act is _drain

    async def do(self, context: ActionContext) -> None:
        """Do the action; raises the API server's error."""
        await self.act(context, self.words)


async def _fail_or_heal(context: ActionContext, words: Words) -> None:
    value = "true" if words["verb"] == "fail" else None
    nodes = [
        node.metadata.name
        for node in context.measurements.nodes
        if words["name"] == (zone_of(node) if words["what"] == "zone" else node.metadata.name)
    ]
    if not nodes:
        raise ConfigError(f"there is no {words['what']} {words['name']}")
    body = {"metadata": {"annotations": {FAILED_ANNOTATION: value}}}
    client = context.cluster.client
    await asyncio.gather(*(client.patch(Node, name, None, body) for name in nodes))


async def _scale(context: ActionContext, words: Words) -> None:
    await _patch_workload(context, words, {"spec": {"replicas": int(words["number"])}})


async def _restart(context: ActionContext, words: Words) -> None:
    template = {"metadata": {"annotations": {RESTARTED_AT: context.now()}}}
    await _patch_workload(context, words, {"spec": {"template": template}})


async def _update(context: ActionContext, words: Words) -> None:
    workload = context.measurements.workload((words["namespace"], words["name"]))
    template = msgspec.json.decode(workload.spec.template) if workload else {}
    names = [container["name"] for container in template.get("spec", {}).get("containers", ())]
    template = {"spec": {"containers": [{"name": "".join(names[:1]), "image": words["image"]}]}}
    await _patch_workload(context, words, {"spec": {"template": template}})


async def _patch_workload(context: ActionContext, words: Words, body: dict[str, Any]) -> None:
    namespace, name = words["namespace"], words["name"]
    workload = context.measurements.workload((namespace, name))
    if workload is None:
        raise ConfigError(f"there is no workload {namespace}/{name}")
    await context.cluster.client.patch(type(workload), name, namespace, body, kind="strategic")


async def _cordon(context: ActionContext, words: Words) -> None:
    body = {"spec": {"unschedulable": True if words["verb"] == "cordon" else None}}
    try:
        await context.cluster.client.patch(Node, words["name"], None, body)
    except NotFound:
        raise _node_not_found(words) from None


async def _drain(context: ActionContext, words: Words) -> None:
    context.measurements.drains += 1
    try:
        await _cordon(context, {**words, "verb": "cordon"})
        while pods := [
            pod for pod in context.measurements.pods if _is_drained_from(pod, words["name"])
        ]:
            for pod in pods:
                if pod.metadata.deletion_timestamp is None:
                    await _evict(context, pod)
            await asyncio.sleep(RETRY_SECONDS)
    finally:
        context.measurements.drains -= 1


async def _evict(context: ActionContext, pod: Pod) -> None:
    meta = pod.metadata
    try:
        await context.cluster.client.evict(meta.name, meta.namespace, uid=meta.uid)
    except (NotFound, TooManyRequests):
        return


def _is_drained_from(pod: Pod, node: str) -> bool:
    owner = pod.metadata.controller
    is_daemon = owner is not None and owner.kind == DaemonSet.resource.kind
    return pod.spec.node_name == node and not is_daemon


async def _add_node(context: ActionContext, words: Words) -> None:
    manifest = node_manifest(words["name"], words["zone"], words["cpu"])
    await context.cluster.client.create(unstructured(Node.resource)(manifest))


async def _remove_node(context: ActionContext, words: Words) -> None:
    try:
        await context.cluster.client.delete(Node, words["name"])
    except NotFound:
        raise _node_not_found(words) from None


def _node_not_found(words: Words) -> ConfigError:
    return ConfigError(f"there is no node {words['name']}")


async def _change_takeover(context: ActionContext, words: Words) -> None:
    targets = words.get("by")
    client = context.cluster.client
    try:
        config_map = await client.get(ConfigMap, CONFIG_MAP, NAMESPACE)
    except NotFound:
        raise ConfigError("this cluster has no driver; set cluster: {volumes: true}") from None
    change = {words["name"]: tuple(targets.split(",")) if targets else None}
    text = edit_takeover(str(config_map.get("data", CONFIG_KEY)), change, DomainLabels(""))
    body = {
        "metadata": {"resourceVersion": config_map.metadata.resource_version},
        "data": {CONFIG_KEY: text},
    }
    await client.patch(ConfigMap, CONFIG_MAP, NAMESPACE, body)


_ACTIONS: tuple[tuple[re.Pattern[str], Act], ...] = tuple(
    (re.compile(pattern), act)
    for pattern, act in (
        (rf"(?P<verb>fail|heal) (?P<what>zone|node) {_NAME}", _fail_or_heal),
        (rf"scale {_WORKLOAD} to (?P<number>[0-9]+)", _scale),
        (rf"restart {_WORKLOAD}", _restart),
        (rf"update {_WORKLOAD} to (?P<image>\S+)", _update),
        (rf"(?P<verb>cordon|uncordon) {_NAME}", _cordon),
        (rf"drain {_NAME}", _drain),
        (rf"add node {_NAME} in (?P<zone>[-a-z0-9]+) with (?P<cpu>[0-9.]+m?) cpu", _add_node),
        (rf"remove node {_NAME}", _remove_node),
        (rf"takeover set {_NAME} by (?P<by>[-a-z0-9.,/]+)", _change_takeover),
        (rf"takeover clear {_NAME}", _change_takeover),
    )
)
