"""The few controllers without which an API server is not one.

- **Garbage**: objects whose owners are gone (the decisions are in ``collector``).
- **Namespaces**: what a new one needs (account ``default``, the CA's ConfigMap), and the end of
  one: its content is deleted, pods before everything they may need to end well; what remains is
  told in its conditions, and when nothing remains it is let go.
- **Events**: they expire.
- **Roles**: a ClusterRole that aggregates others has their rules.

All work from the state's events and from what is there at the start, so a restart at any line goes
on. They write through the same path as clients do, as users of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from zonewise.api import selector, times
from zonewise.api.errors import ApiError, NotFound
from zonewise.api.meta import LabelSelector
from zonewise.embedded import bodies
from zonewise.embedded.call import Call, User
from zonewise.embedded.collector import Collector, Hands, Node
from zonewise.embedded.deleting import Deleter, Options
from zonewise.embedded.history import Event
from zonewise.embedded.paths import Target
from zonewise.embedded.registry import Registry, Served
from zonewise.embedded.state import State
from zonewise.embedded.writing import Writer
from zonewise.runtime.logs import logger

Obj = dict[str, Any]

NAMESPACE_GRACE = 5.0
NAMESPACE_PAUSE = 2.0
EVENT_SECONDS = 3600.0
EVENT_PAUSE = 60.0
RETRY = 1.0
AUTHORITY = "kube-root-ca.crt"
PODS = "/pods"
CLUSTER_ROLES = "rbac.authorization.k8s.io/clusterroles"

_log = logger("housekeeping")


class Housekeeping:
    """Runs the controllers until cancelled."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        writer: Writer,
        deleter: Deleter,
        user: User,
        authority: str,
        clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._user = user
        self._authority = authority
        self._clock = clock
        self._storages: dict[str, Served] = {}
        self._collector = Collector(
            registry,
            Hands(
                look=self._look,
                delete=self._delete,
                drop_owners=self._drop_owners,
                drop_finalizer=self._drop_finalizer,
                unblock=self._unblock,
            ),
        )
        self._namespaces: dict[str, float] = {}  # name -> when to look after it
        self._wake = asyncio.Event()
        self._aggregate = asyncio.Event()
        self._refresh()
        registry.on_change(self._refresh)

    def start(self) -> list[asyncio.Task[None]]:
        """Look at what is there, then go on with what happens."""
        for storage, _, _ in list(self._state.kinds()):
            for entry in self._state.list(storage).entries:
                node = Node(storage, entry.namespace, entry.name)
                self._collector.observe(node, entry.uid, entry.raw)
        for entry in self._state.list("/namespaces").entries:
            self._attend(entry.name, NAMESPACE_GRACE if entry.deleting else 0.0)
        self._aggregate.set()
        self._state.listen(self._observe)
        return [
            asyncio.create_task(self._forever(work), name=name)
            for name, work in (
                ("garbage", self._collector.run),
                ("namespaces", self._keep_namespaces),
                ("events", self._expire_events),
                ("roles", self._aggregate_roles),
            )
        ]

    def _observe(self, storage: str, event: Event) -> None:
        entry = event.entry
        gone = event.type == "DELETED"
        if storage != "/events":
            node = Node(storage, entry.namespace, entry.name)
            self._collector.observe(node, entry.uid, None if gone else entry.raw)
        if storage == "/namespaces" and not gone:
            self._attend(entry.name, NAMESPACE_GRACE if entry.deleting else 0.0)
        elif (storage == "/configmaps" and entry.name == AUTHORITY) or (
            gone and storage == "/serviceaccounts"
        ):
            self._attend(entry.namespace, 0.0)
        elif storage == CLUSTER_ROLES:
            self._aggregate.set()

    def _attend(self, name: str, after: float) -> None:
        due = self._clock() + after
        self._namespaces[name] = min(due, self._namespaces.get(name, due))
        self._wake.set()

    async def _forever(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                _log.exception("housekeeping failed, once more")
                await asyncio.sleep(RETRY)

    async def _keep_namespaces(self) -> None:
        while True:
            now = self._clock()
            due = [name for name, when in self._namespaces.items() if when <= now]
            for name in due:
                del self._namespaces[name]
                try:
                    await self._keep(name)
                except ApiError as error:
                    _log.info("a namespace is looked after again", name=name, why=str(error))
                    self._attend(name, NAMESPACE_PAUSE)
            self._wake.clear()
            next_due = min(self._namespaces.values(), default=None)
            wait = None if next_due is None else max(next_due - self._clock(), 0.01)
            try:
                await asyncio.wait_for(self._wake.wait(), wait)
            except TimeoutError:
                continue

    async def _keep(self, name: str) -> None:
        namespace = self._writer.look("/namespaces", "", name)
        if namespace is None:
            return
        if namespace["metadata"].get("deletionTimestamp"):
            await self._empty(name, namespace)
            return
        await self._ensure(name, "serviceaccounts", {"metadata": {"name": "default"}})
        config = {
            "metadata": {
                "name": AUTHORITY,
                "annotations": {
                    "kubernetes.io/description": "Contains a CA bundle that can be used to verify"
                    " the kube-apiserver when using internal endpoints such as the internal service"
                    " IP or kubernetes.default.svc. No other usage is guaranteed across"
                    " distributions of Kubernetes clusters."
                },
            },
            "data": {"ca.crt": self._authority},
        }
        await self._ensure(name, "configmaps", config)
        published = self._writer.look("/configmaps", name, AUTHORITY)
        if published is not None and published.get("data") != config["data"]:
            node = Node("/configmaps", name, AUTHORITY)
            await self._change(node, lambda obj: {**obj, "data": config["data"]})

    async def _ensure(self, namespace: str, plural: str, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        if self._state.latest(f"/{plural}", namespace, name) is not None:
            return
        served = self._registry.at("", "v1", plural)
        assert served is not None
        target = Target("", "v1", plural, namespace)
        try:
            await self._writer.create(self._call("POST"), served, target, obj)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def _empty(self, name: str, namespace: Obj) -> None:
        left: list[str] = []
        finalizers: dict[str, int] = {}
        storages = sorted(self._storages, key=lambda storage: (storage != PODS, storage))
        for storage in storages:
            served = self._storages[storage]
            if not served.kind.resource.namespaced or not served.kind.verbs:
                continue
            for entry in self._state.list(storage, name).entries:
                options = Options(policy="Background", raw={})
                try:
                    await self._deleter.delete(
                        self._call("DELETE"), served, name, entry.name, options
                    )
                except NotFound:
                    continue
            remaining = self._state.list(storage, name).entries
            if remaining:
                left.append(
                    f"{served.kind.resource.qualified} has {len(remaining)} resource instances"
                )
            for entry in remaining:
                meta = bodies.decode_stored(entry.raw)["metadata"]
                for one in meta.get("finalizers") or ():
                    finalizers[one] = finalizers.get(one, 0) + 1
            if remaining and storage == PODS:
                break
        served = self._served("/namespaces")
        target = Target("", "v1", "namespaces", "", name)
        if left:
            conditions = _conditions(left, finalizers, self._writer.scene(self._call("PUT")).now)
            await self._writer.change(
                self._call("PATCH"),
                served,
                target,
                lambda obj: _with_conditions(obj, conditions),
                subresource="status",
            )
            self._attend(name, NAMESPACE_PAUSE)
            return
        if (namespace.get("spec") or {}).get("finalizers"):
            await self._writer.change(
                self._call("PUT"), served, target, _released, subresource="finalize"
            )

    async def _expire_events(self) -> None:
        while True:
            limit = self._clock() - EVENT_SECONDS
            served = self._served("/events")
            for entry in self._state.list("/events").entries:
                obj = bodies.decode_stored(entry.raw)
                last = _last_seen(obj)
                if last is not None and last < limit:
                    options = Options(uid=entry.uid, raw={})
                    try:
                        await self._deleter.delete(
                            self._call("DELETE"), served, entry.namespace, entry.name, options
                        )
                    except ApiError:
                        continue
            await asyncio.sleep(EVENT_PAUSE)

    async def _aggregate_roles(self) -> None:
        while True:
            await self._aggregate.wait()
            self._aggregate.clear()
            roles = [
                bodies.decode_stored(entry.raw) for entry in self._state.list(CLUSTER_ROLES).entries
            ]
            for role in roles:
                rule = role.get("aggregationRule")
                if not rule:
                    continue
                wanted = _aggregated(role, rule, roles)
                if wanted != (role.get("rules") or []):
                    await self._give_rules(role["metadata"]["name"], wanted)

    async def _give_rules(self, name: str, rules: list[Obj]) -> None:
        node = Node(CLUSTER_ROLES, "", name)
        await self._change(node, lambda obj: {**obj, "rules": rules})

    def _look(self, node: Node) -> Obj | None:
        return self._writer.look(*node)

    async def _delete(self, node: Node, uid: str, policy: str) -> None:
        options = Options(uid=uid, policy=policy, raw={"propagationPolicy": policy})
        try:
            await self._deleter.delete(
                self._call("DELETE"), self._served(node.storage), node.namespace, node.name, options
            )
        except NotFound:
            return

    async def _drop_owners(self, node: Node, uids: frozenset[str]) -> None:
        def without(obj: Obj) -> Obj:
            meta = obj["metadata"]
            kept = [one for one in meta.get("ownerReferences") or () if one.get("uid") not in uids]
            if kept:
                meta["ownerReferences"] = kept
            else:
                meta.pop("ownerReferences", None)
            return obj

        await self._change(node, without)

    async def _drop_finalizer(self, node: Node, finalizer: str) -> None:
        def without(obj: Obj) -> Obj:
            meta = obj["metadata"]
            kept = [one for one in meta.get("finalizers") or () if one != finalizer]
            if kept:
                meta["finalizers"] = kept
            else:
                meta.pop("finalizers", None)
            return obj

        await self._change(node, without)

    async def _unblock(self, node: Node) -> None:
        def freed(obj: Obj) -> Obj:
            for one in obj["metadata"].get("ownerReferences") or ():
                one["blockOwnerDeletion"] = False
            return obj

        await self._change(node, freed)

    async def _change(self, node: Node, change: Callable[[Obj], Obj]) -> None:
        served = self._served(node.storage)
        resource = served.kind.resource
        target = Target(
            resource.group, resource.version, resource.plural, node.namespace, node.name
        )
        try:
            await self._writer.change(self._call("PATCH"), served, target, change)
        except NotFound:
            return

    def _served(self, storage: str) -> Served:
        return self._storages[storage]

    def _refresh(self) -> None:
        self._storages = self._registry.storages()

    def _call(self, method: str) -> Call:
        return Call(
            method=method,
            path="",
            user=self._user,
            headers={"user-agent": "kube-controller-manager/1"},
        )


def _aggregated(role: Obj, rule: Obj, roles: list[Obj]) -> list[Obj]:
    wanted: list[Obj] = []
    for one in rule.get("clusterRoleSelectors") or ():
        chosen = selector.from_object(msgspec.convert(one, LabelSelector))
        for other in roles:
            meta = other["metadata"]
            if meta["name"] != role["metadata"]["name"] and chosen.matches(
                meta.get("labels") or {}
            ):
                wanted += [part for part in other.get("rules") or () if part not in wanted]
    return wanted


def _last_seen(obj: Obj) -> float | None:
    series = obj.get("series") or {}
    meta = obj["metadata"]
    moment = (
        series.get("lastObservedTime")
        or obj.get("lastTimestamp")
        or obj.get("eventTime")
        or meta.get("creationTimestamp")
    )
    return times.parse(moment).timestamp() if moment else None


def _released(obj: Obj) -> Obj:
    obj["spec"] = {}
    return obj


def _conditions(left: list[str], finalizers: dict[str, int], now: str) -> list[Obj]:
    def condition(kind: str, holds: bool, reason: str, message: str) -> Obj:
        return {
            "type": kind,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now,
        }

    waiting = [
        f"{name} in {count} resource instances" for name, count in sorted(finalizers.items())
    ]
    return [
        condition(
            "NamespaceDeletionDiscoveryFailure",
            False,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            False,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        condition(
            "NamespaceDeletionContentFailure",
            False,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        condition(
            "NamespaceContentRemaining",
            True,
            "SomeResourcesRemain",
            "Some resources are remaining: " + ", ".join(left),
        ),
        condition(
            "NamespaceFinalizersRemaining",
            bool(waiting),
            "SomeFinalizersRemain" if waiting else "ContentHasNoFinalizers",
            "Some content in the namespace has finalizers remaining: " + ", ".join(waiting)
            if waiting
            else "All content-preserving finalizers finished",
        ),
    ]


def _with_conditions(obj: Obj, conditions: list[Obj]) -> Obj:
    status = obj.setdefault("status", {})
    before = {one["type"]: one for one in status.get("conditions") or ()}
    for one in conditions:
        old = before.get(one["type"])
        if old and old["status"] == one["status"]:
            one["lastTransitionTime"] = old["lastTransitionTime"]
    kept = [one for kind, one in before.items() if kind not in {c["type"] for c in conditions}]
    status["conditions"] = conditions + kept
    return obj
