"""Custom resources: definitions become kinds that are served, and go with all their objects.

A definition's names are accepted when no other kind of its group has them; it is then established
and served, both in the time it takes to write its status. A change of its schema is served at once.
A definition that is deleted first loses its objects, then its finalizer. Everything is derived from
the stored definitions, so a restart serves the same kinds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from zonewise.api.errors import ApiError, NotFound, StatusCause
from zonewise.api.objects.admissionregistration import WebhookClientConfig
from zonewise.api.resource import Resource
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import Versions, Webhook
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, Served, version_rank
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.strategy.cluster.custom_resources import (
    CONFORMANT,
    CustomRules,
    approved,
    bad_bundle,
)
from zonewise.embedded.apiserver.strategy.metadata import CLEANUP
from zonewise.embedded.apiserver.webhooks.caller import Caller
from zonewise.embedded.machinery.crd.custom import resource_faults
from zonewise.embedded.machinery.crd.structural import type_of
from zonewise.embedded.machinery.schema.kinds import Column, Kind, Subresource
from zonewise.embedded.machinery.schema.types import Type
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
RETRY = 1.0

_log = logger("definitions")


class CustomStructure:
    """What a schema says of objects beyond their types."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def faults(self, obj: Obj, old: Obj | None) -> list[StatusCause]:
        """What is wrong with an object, or with its change from ``old``."""
        return resource_faults(self._kind.type, obj, old)


class Customs:
    """Keeps the registry equal to the stored definitions."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        writer: Writer,
        deleter: Deleter,
        metadata: Callable[[], Type],
        user: User,
        caller: Caller,
        new_uid: Callable[[], str],
    ) -> None:
        self._state = state
        self._registry = registry
        self._writer = writer
        self._deleter = deleter
        self._metadata = metadata
        self._user = user
        self._caller = caller
        self._new_uid = new_uid
        self._served: dict[str, list[Served]] = {}
        self._stored: dict[str, Served] = {}
        """The storage version of each definition, served or not."""
        self._shown: dict[str, tuple[Any, ...]] = {}
        self._work: dict[str, None] = {}
        self._wake = asyncio.Event()
        for entry in state.list(DEFINITIONS).entries:
            self._serve(bodies.decode_stored(entry.raw))
            self._todo(entry.name)
        state.listen(self._observe)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work:
                name = next(iter(self._work))
                del self._work[name]
                try:
                    await self._attend(name)
                except ApiError as error:
                    _log.info("a definition is processed again", name=name, why=str(error))
                    await asyncio.sleep(RETRY)
                    self._todo(name)

    def _observe(self, storage: str, event: StoreEvent) -> None:
        if storage == DEFINITIONS:
            name = event.entry.name
            if event.type == "DELETED":
                self._withdraw(name)
            else:
                self._serve(bodies.decode_stored(event.entry.raw))
            self._todo(name)

    def _todo(self, name: str) -> None:
        self._work[name] = None
        self._wake.set()

    async def _attend(self, name: str) -> None:
        definition = self._writer.look(DEFINITIONS, "", name)
        if definition is None:
            return
        if definition["metadata"].get("deletionTimestamp"):
            await self._finish(name, definition)
            return
        conflict = self._conflict(definition)
        now = self._writer.context(self._call("PUT")).now
        await self._change(name, lambda obj: _accepted(obj, conflict, now), "status")

    async def _finish(self, name: str, definition: Obj) -> None:
        if CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            return
        one = self._stored.get(name)
        if one is not None:
            for entry in self._state.list(one.storage).entries:
                try:
                    await self._deleter.delete(
                        self._call("DELETE"),
                        one,
                        entry.namespace,
                        entry.name,
                        DeleteOptions(raw={}),
                    )
                except NotFound:
                    continue
            if self._state.count(one.storage):
                await asyncio.sleep(RETRY)
                self._todo(name)
                return
        await self._change(name, _without_cleanup)

    def _conflict(self, definition: Obj) -> str:
        spec = definition["spec"]
        mine = definition["metadata"]["name"]
        names = spec["names"]
        for entry in self._state.list(DEFINITIONS).entries:
            if entry.name == mine:
                continue
            other = bodies.decode_stored(entry.raw)
            if other["spec"]["group"] != spec["group"]:
                continue
            taken = (other.get("status") or {}).get("acceptedNames") or {}
            plurals = {taken.get("plural"), taken.get("singular"), *(taken.get("shortNames") or ())}
            for key in ("plural", "singular"):
                if names.get(key) in plurals:
                    return f'"{names[key]}" is already in use'
            for short in names.get("shortNames") or ():
                if short in plurals:
                    return f'"{short}" is already in use'
            for key in ("kind", "listKind"):
                if names.get(key) in {taken.get("kind"), taken.get("listKind")}:
                    return f'"{names[key]}" is already in use'
        return ""

    def _serve(self, definition: Obj) -> None:
        name = definition["metadata"]["name"]
        status = definition.get("status") or {}
        conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
        if conditions.get("Established") != "True":
            return
        ending = bool(definition["metadata"].get("deletionTimestamp"))
        shown = (definition["spec"], status.get("acceptedNames"), ending)
        if self._shown.get(name) == shown:
            return
        self._shown[name] = shown
        gone = self._served.get(name, [])
        kinds = self._kinds(definition, ending)
        self._stored[name] = next(one for one in kinds if one.stored)
        come = [one for one in kinds if one.table is not None and one.table.get("served")]
        self._served[name] = come
        self._registry.replace(gone, come)
        if gone and not ending:
            self._state.end_watches(gone[0].storage, "the kind has changed")

    def _withdraw(self, name: str) -> None:
        gone = self._served.pop(name, [])
        self._stored.pop(name, None)
        self._shown.pop(name, None)
        self._registry.replace(gone, [])
        for one in gone[:1]:
            self._state.end_watches(one.storage, "the kind is gone")

    def _kinds(self, definition: Obj, ending: bool) -> list[Served]:
        """Each version that is served or stored."""
        spec = definition["spec"]
        names = (definition.get("status") or {}).get("acceptedNames") or spec["names"]
        verbs = tuple(verb for verb in VERBS if verb != "create") if ending else VERBS
        kinds = {
            f"{spec['group']}/{one['name']}": self._kind(spec, names, one, verbs)
            for one in spec["versions"]
        }
        stored = next(one["name"] for one in spec["versions"] if one.get("storage"))
        versions = None
        if len(kinds) > 1:
            versions = Versions(
                stored_as=f"{spec['group']}/{stored}",
                kinds=kinds,
                webhook=self._webhook(spec.get("conversion") or {}),
            )
        return [
            _served(kind, one, versions, deprecation(spec, one))
            for one, kind in zip(spec["versions"], kinds.values(), strict=True)
            if one.get("served") or one.get("storage")
        ]

    def _webhook(self, conversion: Obj) -> Webhook | None:
        if conversion.get("strategy") != "Webhook":
            return None
        webhook = conversion["webhook"]
        return Webhook(
            config=msgspec.convert(webhook["clientConfig"], WebhookClientConfig),
            reviews=tuple(webhook["conversionReviewVersions"]),
            caller=self._caller,
            new_uid=self._new_uid,
        )

    def _kind(self, spec: Obj, names: Obj, version: Obj, verbs: tuple[str, ...]) -> Kind:
        group, plural, number = spec["group"], names["plural"], version["name"]
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        below = version.get("subresources") or {}
        subresources = {}
        if "status" in below:
            subresources["status"] = Subresource(
                "status", group, number, names["kind"], ("get", "patch", "update")
            )
        if "scale" in below:
            subresources["scale"] = Subresource(
                "scale", "autoscaling", "v1", "Scale", ("get", "patch", "update")
            )
        return Kind(
            resource=Resource(group, number, names["kind"], plural, spec["scope"] == "Namespaced"),
            singular=names.get("singular", ""),
            list_kind=names.get("listKind") or f"{names['kind']}List",
            verbs=verbs,
            make_type=lambda: type_of(schema, metadata=self._metadata()),
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=subresources,
            storage=f"{group}/{plural}",
            columns=columns(version),
            custom=True,
            schema=schema,
        )

    async def _change(self, name: str, change: Callable[[Obj], Obj], subresource: str = "") -> None:
        served = self._registry.of("apiextensions.k8s.io/v1", "CustomResourceDefinition")
        assert served is not None
        target = Target("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", name)
        try:
            await self._writer.change(
                self._call("PATCH"), served, target, change, subresource=subresource
            )
        except NotFound:
            return

    def _call(self, method: str) -> Call:
        return Call(
            method=method, path="", user=self._user, headers={"user-agent": "kube-apiserver/1"}
        )


def deprecation(spec: Obj, version: Obj) -> str:
    """The warning for a deprecated version; by default it names a better one."""
    if not version.get("deprecated"):
        return ""
    if version.get("deprecationWarning") is not None:
        return str(version["deprecationWarning"])
    group, kind, own = spec["group"], spec["names"]["kind"], version["name"]
    text = f"{group}/{own} {kind} is deprecated"
    better = [
        one["name"]
        for one in spec["versions"]
        if one.get("served")
        and not one.get("deprecated")
        and version_rank(one["name"]) < version_rank(own)
    ]
    if not better:
        return text
    return f"{text}; use {group}/{min(better, key=version_rank)} {kind}"


def _served(kind: Kind, version: Obj, versions: Versions | None, deprecation: str) -> Served:
    below = version.get("subresources") or {}
    rules = CustomRules(
        has_status="status" in below,
        scale=below.get("scale"),
        selectable=tuple(one["jsonPath"] for one in version.get("selectableFields") or ()),
    )
    return Served(
        kind=kind,
        rules=rules,
        versions=versions,
        structure=CustomStructure(kind),
        table=version,
        deprecation=deprecation,
    )


def columns(version: Obj) -> tuple[Column, ...]:
    """The columns of a version's table."""
    chosen = version.get("additionalPrinterColumns")
    found = [Column(name="Name", type="string", format="name")]
    if not chosen:
        return (*found, Column(name="Age", type="date"))
    for one in chosen:
        found.append(
            Column(
                name=one["name"],
                type=one["type"],
                format=one.get("format", ""),
                priority=one.get("priority", 0),
                path=one["jsonPath"],
            )
        )
    return tuple(found)


def _accepted(obj: Obj, conflict: str, now: str) -> Obj:
    status = obj.setdefault("status", {})
    conditions = [
        one
        for one in status.get("conditions") or ()
        if one.get("type") not in {"NamesAccepted", "Established"}
    ]
    before = {one.get("type"): one for one in status.get("conditions") or ()}
    established = (before.get("Established") or {}).get("status") == "True"
    if not conflict:
        status["acceptedNames"] = obj["spec"]["names"]
        wanted = [_condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", now)]
        if established or not bad_bundle(obj):
            text = "the initial names have been accepted"
            wanted.append(_condition("Established", "True", "InitialNamesAccepted", text, now))
        else:
            text = "The conversion webhook CABundle is invalid"
            wanted.append(_condition("Established", "False", "InvalidCABundle", text, now))
    else:
        wanted = [_condition("NamesAccepted", "False", "PluralConflict", conflict, now)]
        if established:
            wanted.append(before["Established"])
        else:
            wanted.append(
                _condition("Established", "False", "NotAccepted", "not all names are accepted", now)
            )
    approval = approved(obj)
    if approval is not None:
        conformant, reason, text = approval
        kept = before.get(CONFORMANT) or {}
        conditions = [one for one in conditions if one.get("type") != CONFORMANT]
        if (kept.get("reason"), kept.get("message")) == (reason, text):
            conditions.append(kept)
        else:
            conditions.append(_condition(CONFORMANT, conformant, reason, text, now))
    for index, one in enumerate(wanted):
        old = before.get(one["type"])
        if old and old.get("status") == one["status"]:
            wanted[index] = old
    status["conditions"] = wanted + conditions
    return obj


def _condition(kind: str, status: str, reason: str, message: str, now: str) -> Obj:
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def _without_cleanup(obj: Obj) -> Obj:
    kept = [one for one in obj["metadata"].get("finalizers") or () if one != CLEANUP]
    if kept:
        obj["metadata"]["finalizers"] = kept
    else:
        obj["metadata"].pop("finalizers", None)
    return obj
