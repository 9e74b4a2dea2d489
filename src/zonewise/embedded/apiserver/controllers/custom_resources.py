"""Custom resources: serves the kinds of definitions, and deletes their objects with them.

A definition's names are accepted if no other kind of its group has them; it is established and
served as soon as its status is written. A change of its schema is served at once. When a definition
is deleted, first its objects are deleted, then its finalizer is removed. Everything is derived from
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
from zonewise.embedded.apiserver.conversion.versions import ConversionWebhook, Versions
from zonewise.embedded.apiserver.handlers.deleting import DeleteOptions, Deleter
from zonewise.embedded.apiserver.handlers.update_checks import set_or_remove
from zonewise.embedded.apiserver.handlers.writing import Writer
from zonewise.embedded.apiserver.registry import Registry, ServedKind, version_rank
from zonewise.embedded.apiserver.request.call import Call, User
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.history import StoreEvent
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.apiserver.strategy.cluster.custom_resources import (
    CONFORMANT,
    CustomRules,
    find_approval,
    has_invalid_bundle,
)
from zonewise.embedded.apiserver.strategy.metadata import CLEANUP
from zonewise.embedded.apiserver.webhooks.caller import WebhookCaller
from zonewise.embedded.machinery.crd.custom_resource import validate_custom_resource
from zonewise.embedded.machinery.crd.structural import compile_schema
from zonewise.embedded.machinery.schema.kinds import Column, Kind, Subresource
from zonewise.embedded.machinery.schema.schema import Schema
from zonewise.runtime.process.logs import logger

Obj = dict[str, Any]

DEFINITIONS = "apiextensions.k8s.io/customresourcedefinitions"
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
RETRY_SECONDS = 1.0

_log = logger("definitions")


class SchemaValidation:
    """Validation by a custom resource's schema."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def validate(self, obj: Obj, old: Obj | None) -> list[StatusCause]:
        """The errors in an object, or in its change from ``old``."""
        return validate_custom_resource(self._kind.schema, obj, old)


class CustomResources:
    """Updates the registry from the stored definitions."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        writer: Writer,
        deleter: Deleter,
        metadata: Callable[[], Schema],
        user: User,
        caller: WebhookCaller,
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
        self._served: dict[str, list[ServedKind]] = {}
        self._storage_versions: dict[str, ServedKind] = {}
        """The storage version of each definition, served or not."""
        self._served_specs: dict[str, tuple[Any, ...]] = {}
        self._queue: dict[str, None] = {}
        self._wake = asyncio.Event()
        for entry in state.list(DEFINITIONS).entries:
            self._serve(bodies.decode_stored(entry.raw))
            self._enqueue(entry.name)
        state.listen(self._observe)

    async def run(self) -> None:
        """Process definitions until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                name = next(iter(self._queue))
                del self._queue[name]
                try:
                    await self._process(name)
                except ApiError as error:
                    _log.info("a definition is processed again", name=name, why=str(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    self._enqueue(name)

    def _observe(self, storage: str, event: StoreEvent) -> None:
        if storage == DEFINITIONS:
            name = event.entry.name
            if event.type == "DELETED":
                self._withdraw(name)
            else:
                self._serve(bodies.decode_stored(event.entry.raw))
            self._enqueue(name)

    def _enqueue(self, name: str) -> None:
        self._queue[name] = None
        self._wake.set()

    async def _process(self, name: str) -> None:
        definition = self._writer.get_object(DEFINITIONS, "", name)
        if definition is None:
            return
        if definition["metadata"].get("deletionTimestamp"):
            await self._finish_deletion(name, definition)
            return
        conflict = self._conflict(definition)
        now = self._writer.context(self._call("PUT")).now
        await self._change(name, lambda obj: _update_status(obj, conflict, now), "status")

    async def _finish_deletion(self, name: str, definition: Obj) -> None:
        if CLEANUP not in (definition["metadata"].get("finalizers") or ()):
            return
        served = self._storage_versions.get(name)
        if served is not None:
            for entry in self._state.list(served.storage).entries:
                try:
                    await self._deleter.delete(
                        self._call("DELETE"),
                        served,
                        entry.namespace,
                        entry.name,
                        DeleteOptions(raw={}),
                    )
                except NotFound:
                    continue
            if self._state.count(served.storage):
                await asyncio.sleep(RETRY_SECONDS)
                self._enqueue(name)
                return
        await self._change(name, _drop_cleanup_finalizer)

    def _conflict(self, definition: Obj) -> str:
        spec = definition["spec"]
        own_name = definition["metadata"]["name"]
        names = spec["names"]
        for entry in self._state.list(DEFINITIONS).entries:
            if entry.name == own_name:
                continue
            other = bodies.decode_stored(entry.raw)
            if other["spec"]["group"] != spec["group"]:
                continue
            accepted_names = (other.get("status") or {}).get("acceptedNames") or {}
            plurals = {
                accepted_names.get("plural"),
                accepted_names.get("singular"),
                *(accepted_names.get("shortNames") or ()),
            }
            for key in ("plural", "singular"):
                if names.get(key) in plurals:
                    return f'"{names[key]}" is already in use'
            for short in names.get("shortNames") or ():
                if short in plurals:
                    return f'"{short}" is already in use'
            for key in ("kind", "listKind"):
                if names.get(key) in {accepted_names.get("kind"), accepted_names.get("listKind")}:
                    return f'"{names[key]}" is already in use'
        return ""

    def _serve(self, definition: Obj) -> None:
        name = definition["metadata"]["name"]
        status = definition.get("status") or {}
        conditions = {
            condition.get("type"): condition.get("status")
            for condition in status.get("conditions") or ()
        }
        if conditions.get("Established") != "True":
            return
        ending = bool(definition["metadata"].get("deletionTimestamp"))
        served_spec = (definition["spec"], status.get("acceptedNames"), ending)
        if self._served_specs.get(name) == served_spec:
            return
        self._served_specs[name] = served_spec
        removed = self._served.get(name, [])
        kinds = self._kinds(definition, ending)
        self._storage_versions[name] = next(served for served in kinds if served.is_storage_version)
        added = [
            served
            for served in kinds
            if served.definition_version is not None and served.definition_version.get("served")
        ]
        self._served[name] = added
        self._registry.replace(removed, added)
        if removed and not ending:
            self._state.end_watches(removed[0].storage, "the kind has changed")

    def _withdraw(self, name: str) -> None:
        removed = self._served.pop(name, [])
        self._storage_versions.pop(name, None)
        self._served_specs.pop(name, None)
        self._registry.replace(removed, [])
        for served in removed[:1]:
            self._state.end_watches(served.storage, "the kind is no longer served")

    def _kinds(self, definition: Obj, ending: bool) -> list[ServedKind]:
        """Each version that is served or stored."""
        spec = definition["spec"]
        names = (definition.get("status") or {}).get("acceptedNames") or spec["names"]
        verbs = tuple(verb for verb in VERBS if verb != "create") if ending else VERBS
        kinds = {
            f"{spec['group']}/{version['name']}": self._kind(spec, names, version, verbs)
            for version in spec["versions"]
        }
        stored = next(version["name"] for version in spec["versions"] if version.get("storage"))
        versions = None
        if len(kinds) > 1:
            versions = Versions(
                stored_as=f"{spec['group']}/{stored}",
                kinds=kinds,
                webhook=self._webhook(spec.get("conversion") or {}),
            )
        return [
            _build_served_kind(kind, version, versions, deprecation_warning(spec, version))
            for version, kind in zip(spec["versions"], kinds.values(), strict=True)
            if version.get("served") or version.get("storage")
        ]

    def _webhook(self, conversion: Obj) -> ConversionWebhook | None:
        if conversion.get("strategy") != "Webhook":
            return None
        webhook = conversion["webhook"]
        return ConversionWebhook(
            config=msgspec.convert(webhook["clientConfig"], WebhookClientConfig),
            review_versions=tuple(webhook["conversionReviewVersions"]),
            caller=self._caller,
            new_uid=self._new_uid,
        )

    def _kind(self, spec: Obj, names: Obj, version: Obj, verbs: tuple[str, ...]) -> Kind:
        group, plural, version_name = spec["group"], names["plural"], version["name"]
        openapi_schema = (version.get("schema") or {}).get("openAPIV3Schema")
        subresource_specs = version.get("subresources") or {}
        subresources = {}
        if "status" in subresource_specs:
            subresources["status"] = Subresource(
                "status", group, version_name, names["kind"], ("get", "patch", "update")
            )
        if "scale" in subresource_specs:
            subresources["scale"] = Subresource(
                "scale", "autoscaling", "v1", "Scale", ("get", "patch", "update")
            )
        return Kind(
            resource=Resource(
                group, version_name, names["kind"], plural, spec["scope"] == "Namespaced"
            ),
            singular=names.get("singular", ""),
            list_kind=names.get("listKind") or f"{names['kind']}List",
            verbs=verbs,
            build_schema=lambda: compile_schema(openapi_schema, metadata=self._metadata()),
            short_names=tuple(names.get("shortNames") or ()),
            categories=tuple(names.get("categories") or ()),
            subresources=subresources,
            storage=f"{group}/{plural}",
            columns=columns_of(version),
            custom=True,
            openapi_schema=openapi_schema,
        )

    async def _change(self, name: str, change: Callable[[Obj], Obj], subresource: str = "") -> None:
        served = self._registry.by_kind("apiextensions.k8s.io/v1", "CustomResourceDefinition")
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


def deprecation_warning(spec: Obj, version: Obj) -> str:
    """The warning for a deprecated version; by default it names the best other one."""
    if not version.get("deprecated"):
        return ""
    if version.get("deprecationWarning") is not None:
        return str(version["deprecationWarning"])
    group, kind, version_name = spec["group"], spec["names"]["kind"], version["name"]
    text = f"{group}/{version_name} {kind} is deprecated"
    better = [
        version_spec["name"]
        for version_spec in spec["versions"]
        if version_spec.get("served")
        and not version_spec.get("deprecated")
        and version_rank(version_spec["name"]) < version_rank(version_name)
    ]
    if not better:
        return text
    return f"{text}; use {group}/{min(better, key=version_rank)} {kind}"


def _build_served_kind(
    kind: Kind, version: Obj, versions: Versions | None, deprecation: str
) -> ServedKind:
    subresource_specs = version.get("subresources") or {}
    rules = CustomRules(
        has_status="status" in subresource_specs,
        scale=subresource_specs.get("scale"),
        selectable=tuple(field["jsonPath"] for field in version.get("selectableFields") or ()),
    )
    return ServedKind(
        kind=kind,
        rules=rules,
        versions=versions,
        custom_validation=SchemaValidation(kind),
        definition_version=version,
        deprecation=deprecation,
    )


def columns_of(version: Obj) -> tuple[Column, ...]:
    """The columns of a version's table."""
    printer_columns = version.get("additionalPrinterColumns")
    result = [Column(name="Name", type="string", format="name")]
    if not printer_columns:
        return (*result, Column(name="Age", type="date"))
    for column in printer_columns:
        result.append(
            Column(
                name=column["name"],
                type=column["type"],
                format=column.get("format", ""),
                priority=column.get("priority", 0),
                path=column["jsonPath"],
            )
        )
    return tuple(result)


def _update_status(obj: Obj, conflict: str, now: str) -> Obj:
    status = obj.setdefault("status", {})
    conditions = [
        condition
        for condition in status.get("conditions") or ()
        if condition.get("type") not in {"NamesAccepted", "Established"}
    ]
    previous = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    established = (previous.get("Established") or {}).get("status") == "True"
    if not conflict:
        status["acceptedNames"] = obj["spec"]["names"]
        updated = [_condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", now)]
        if established or not has_invalid_bundle(obj):
            text = "the initial names have been accepted"
            updated.append(_condition("Established", "True", "InitialNamesAccepted", text, now))
        else:
            text = "The conversion webhook CABundle is invalid"
            updated.append(_condition("Established", "False", "InvalidCABundle", text, now))
    else:
        updated = [_condition("NamesAccepted", "False", "PluralConflict", conflict, now)]
        if established:
            updated.append(previous["Established"])
        else:
            updated.append(
                _condition("Established", "False", "NotAccepted", "not all names are accepted", now)
            )
    approval = find_approval(obj)
    if approval is not None:
        conformant, reason, text = approval
        current = previous.get(CONFORMANT) or {}
        conditions = [condition for condition in conditions if condition.get("type") != CONFORMANT]
        if (current.get("reason"), current.get("message")) == (reason, text):
            conditions.append(current)
        else:
            conditions.append(_condition(CONFORMANT, conformant, reason, text, now))
    for index, condition in enumerate(updated):
        old = previous.get(condition["type"])
        if old and old.get("status") == condition["status"]:
            updated[index] = old
    status["conditions"] = updated + conditions
    return obj


def _condition(condition_type: str, status: str, reason: str, message: str, now: str) -> Obj:
    return {
        "type": condition_type,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def _drop_cleanup_finalizer(obj: Obj) -> Obj:
    finalizers = [name for name in obj["metadata"].get("finalizers") or () if name != CLEANUP]
    set_or_remove(obj["metadata"], "finalizers", finalizers)
    return obj
