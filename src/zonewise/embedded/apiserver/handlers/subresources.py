"""Subresources other than status: scale, binding, tokens, finalizers, logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from zonewise.api import field_errors
from zonewise.api.errors import Status
from zonewise.api.meta import LabelSelector
from zonewise.api.resource import Resource
from zonewise.api.values import selector, times
from zonewise.embedded.apiserver.admission import plugins
from zonewise.embedded.apiserver.admission.admission import SubresourceView
from zonewise.embedded.apiserver.auth.tokens import (
    AUDIENCE,
    MAX_SECONDS,
    MIN_SECONDS,
    BoundObject,
    Tokens,
)
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import with_conversions
from zonewise.embedded.apiserver.handlers import ownership
from zonewise.embedded.apiserver.handlers.patching import Patcher, check_options
from zonewise.embedded.apiserver.handlers.reading import Reader
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.update_checks import check_identity, check_version
from zonewise.embedded.apiserver.handlers.writing import WriteOutcome, Writer
from zonewise.embedded.apiserver.registry import Registry, ServedKind
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.machinery.decoding import decoder

Obj = dict[str, Any]

TOKEN_SECONDS = 3600
SCALE = "autoscaling/v1"
OLD_SCALE_VERSIONS = frozenset({"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"})
BINDING_RESOURCE = Resource("", "v1", "Binding", "pods/binding")
"""The resource in refusals of bindings."""


class Subresources:
    """The subresources."""

    def __init__(
        self,
        *,
        state: State,
        registry: Registry,
        reader: Reader,
        writer: Writer,
        patcher: Patcher,
        tokens: Tokens,
    ) -> None:
        self._state = state
        self._registry = registry
        self._reader = reader
        self._writer = writer
        self._patcher = patcher
        self._tokens = tokens
        self.scale: dict[str, Verb] = {
            "get": self.get_scale,
            "update": self.update_scale,
            "patch": self.patch_scale,
        }

    def object_verbs(self, subresource: str) -> dict[str, Verb]:
        """Verbs of a subresource whose body is the whole object."""

        async def update(call: Call, served: ServedKind, target: Target) -> Answer:
            obj = bodies.read_object(call, served)
            written = await self._writer.change(
                call,
                served,
                target,
                lambda _: bodies.copy(obj),
                subresource=subresource,
                retry=False,
            )
            return await self._answer_object(call, served, written)

        async def patch(call: Call, served: ServedKind, target: Target) -> Answer:
            written = await self._patcher.patch(call, served, target, subresource=subresource)
            return await self._answer_object(call, served, written)

        return {"get": self._reader.get, "update": update, "patch": patch}

    async def bind(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """POST to ``binding``: assigns a pod to a node."""
        binding = bodies.read_unstored(call, "Binding")
        meta = binding.get("metadata") or {}
        node = (binding.get("target") or {}).get("name", "")
        if meta.get("name", "") != target.name:
            raise status_errors.bad_request(
                f"name in URL does not match name in Binding object: {target.name} and"
                f" {meta.get('name', '')}"
            )
        if not node:
            error = field_errors.required("target.name")
            raise status_errors.invalid_options("Binding", [error])
        binding = await self._writer.admit(call, served, target, binding)
        meta, node = binding["metadata"], binding["target"]["name"]
        pods = served
        now = self._writer.context(call).now

        def bind_pod(pod: Obj) -> Obj:
            pod_meta = pod["metadata"]
            if meta.get("uid") and meta["uid"] != pod_meta["uid"]:
                raise status_errors.conflict(
                    pods.kind.resource,
                    target.name,
                    f"Precondition failed: UID in precondition: {meta['uid']},"
                    f" UID in object meta: {pod_meta['uid']}",
                )
            problem = ""
            if pod_meta.get("deletionTimestamp"):
                problem = "is being deleted, cannot be assigned to a host"
            elif pod["spec"].get("nodeName"):
                problem = f'is already assigned to node "{pod["spec"]["nodeName"]}"'
            elif pod["spec"].get("schedulingGates"):
                problem = "has non-empty .spec.schedulingGates"
            if problem:
                text = f"pod {target.name} {problem}"
                raise status_errors.conflict(BINDING_RESOURCE, target.name, text)
            pod["spec"]["nodeName"] = node
            pod_meta.setdefault("annotations", {}).update(meta.get("annotations") or {})
            if not pod_meta["annotations"]:
                del pod_meta["annotations"]
            plugins.copy_topology_labels(pod, self._writer.get_object("/nodes", "", node))
            status = pod.setdefault("status", {})
            status.pop("nominatedNodeName", None)
            conditions = status.setdefault("conditions", [])
            conditions[:] = [
                condition for condition in conditions if condition.get("type") != "PodScheduled"
            ]
            conditions.append(
                {
                    "type": "PodScheduled",
                    "status": "True",
                    "lastProbeTime": None,
                    "lastTransitionTime": now,
                }
            )
            return pod

        await self._writer.change(
            call, pods, target, bind_pod, subresource="binding", admitted=True, set_owners=False
        )
        return Answer(status=201, body=encode_status(Status(status="Success", code=201)))

    async def bind_by_name(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """POST to ``bindings``, the older path."""
        binding = bodies.read_unstored(call, "Binding")
        name = (binding.get("metadata") or {}).get("name", "")
        pods = self._registry.by_path("", "v1", "pods")
        assert pods is not None
        pod_target = Target("", "v1", "pods", target.namespace, name, "binding")
        return await self.bind(call, pods, pod_target)

    async def get_scale(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """GET of ``scale``."""
        entry = self._state.get(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        return await self._answer_scale(call, served, entry)

    async def update_scale(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PUT of ``scale``."""
        scale = bodies.read_unstored(call, "Scale")
        self._check_scale(scale)
        check_identity(served, target, scale.setdefault("metadata", {}))
        return await self._change_scale(call, served, target, lambda _: scale, retry=False)

    def _check_scale(self, body: Obj) -> None:
        """Refuse what is not a Scale of a supported version."""
        version, kind = body.get("apiVersion") or SCALE, body.get("kind") or "Scale"
        if (version, kind) == (SCALE, "Scale"):
            return
        if kind == "Scale" and version in OLD_SCALE_VERSIONS:
            raise status_errors.bad_request(
                f"the API version in the data ({version}) does not match the expected API version"
                f" ({SCALE})"
            )
        version_name = version.rpartition("/")[2]
        served_kind = self._registry.by_kind(version, kind)
        if served_kind is not None and not served_kind.custom:
            reason = (
                f"converting ({version_name}.{kind}) to (autoscaling.Scale): unknown conversion"
            )
        else:
            reason = (
                f'no kind "{kind}" is registered for version "{version}" in scheme'
                ' "pkg/runtime/scheme.go:111"'
            )
        raise status_errors.bad_request(
            decoder.cannot_handle_message(kind, version_name, "Scale", reason)
        )

    async def patch_scale(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PATCH of ``scale``."""
        if negotiation.patch_format(call.headers.get("content-type", "")) == "apply":
            return await self._apply_scale(call, served, target)
        change = self._patcher.change_without_schema(call)
        return await self._change_scale(call, served, target, change, retry=True)

    async def _apply_scale(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """Apply of ``scale``: an apply of the object with only its size."""
        check_options(call, "apply")
        scale = bodies.parse_yaml(call.body)
        if (scale.get("apiVersion"), scale.get("kind")) != ("autoscaling/v1", "Scale"):
            raise status_errors.bad_request("an apply of scale takes a Scale of autoscaling/v1")
        replicas = (scale.get("spec") or {}).get("replicas")
        resource = served.kind.resource
        config: Obj = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": target.name},
        }
        if replicas is not None:
            _put(config, served.rules.scale_paths[0], _check_replicas(target.name, replicas))

        def apply_to(obj: Obj) -> Obj:
            result = ownership.apply_configuration(
                served,
                bodies.copy(config),
                obj,
                manager=call.query["fieldManager"],
                now=self._writer.context(call).now,
                force=call.flag("force"),
                subresource="scale",
            )
            check_identity(served, target, {"name": target.name, **(scale.get("metadata") or {})})
            return result

        written = await self._writer.change(
            call, served, target, apply_to, subresource="scale", set_owners=False
        )
        return await self._answer_scale(call, served, written.entry)

    async def _has_owner(self, served: ServedKind, target: Target) -> bool:
        """Whether the size has a field owner; a change without apply does not add one."""
        entry = self._state.latest(served.storage, target.namespace, target.name)
        if entry is None:
            return False
        return _size_has_owner(
            served, await with_conversions(lambda: bodies.read_stored(served, entry))
        )

    async def _change_scale(
        self,
        call: Call,
        served: ServedKind,
        target: Target,
        change: Callable[[Obj], Obj],
        *,
        retry: bool,
    ) -> Answer:
        def change_object(obj: Obj) -> Obj:
            scale = bodies.decode_unstored("Scale", change(scale_of(served, obj)))
            meta = scale.get("metadata") or {}
            check_identity(served, target, meta)
            if meta.get("resourceVersion", "0") in {
                "",
                "0",
            }:  # without a version any size may be replaced
                meta["resourceVersion"] = obj["metadata"]["resourceVersion"]
            check_version(served, target.name, meta, obj["metadata"], put=not retry)
            return set_size(obj, scale)

        def set_size(obj: Obj, scale: Obj) -> Obj:
            if served.custom:
                return _set_custom_size(served, obj, (scale.get("spec") or {}).get("replicas", 0))
            replicas = _check_replicas(target.name, (scale.get("spec") or {}).get("replicas", 0))
            _put(obj, served.rules.scale_paths[0], replicas)
            return obj

        written = await self._writer.change(
            call,
            served,
            target,
            change_object,
            subresource="scale",
            retry=retry,
            set_owners=await self._has_owner(served, target),
            view=SubresourceView(project=lambda obj: scale_of(served, obj), merge=set_size),
        )
        return await self._answer_scale(call, served, written.entry)

    async def token(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """POST to ``token``: a token for a service account."""
        request = bodies.read_unstored(call, "TokenRequest")
        account = self._writer.get_object("/serviceaccounts", target.namespace, target.name)
        if account is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        request = await self._writer.admit(call, served, target, request)
        spec = request.get("spec") or {}
        seconds = spec.get("expirationSeconds") or TOKEN_SECONDS
        errors = []
        if seconds < MIN_SECONDS:
            text = "may not specify a duration less than 10 minutes"
            errors.append(field_errors.invalid("spec.expirationSeconds", seconds, text))
        elif seconds > MAX_SECONDS:
            text = "may not specify a duration larger than 2^32 seconds"
            errors.append(field_errors.invalid("spec.expirationSeconds", seconds, text))
        if errors:
            raise status_errors.invalid_token_request(errors)
        audiences = tuple(spec.get("audiences") or (AUDIENCE,))
        token, expires = self._tokens.issue(
            namespace=target.namespace,
            account=target.name,
            uid=account["metadata"]["uid"],
            audiences=audiences,
            seconds=seconds,
            bound=self._resolve_bound_object(spec.get("boundObjectRef"), target),
        )
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": target.name,
                "namespace": target.namespace,
                "creationTimestamp": self._writer.context(call).now,
            },
            "spec": {
                "audiences": list(audiences),
                "expirationSeconds": seconds,
                "boundObjectRef": spec.get("boundObjectRef"),
            },
            "status": {
                "token": token,
                "expirationTimestamp": times.format_time(times.from_epoch(expires)),
            },
        }
        return Answer(status=201, body=bodies.encode_plain(answer))

    async def finalize(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """PUT of a namespace's ``finalize``."""
        obj = bodies.read_object(call, served)

        def replace(old: Obj) -> Obj:
            status = old.get("status")
            new = bodies.copy(obj)
            if status is not None:
                new["status"] = status
            return new

        written = await self._writer.change(
            call, served, target, replace, subresource="finalize", retry=False
        )
        return await self._answer_object(call, served, written)

    async def log(self, call: Call, served: ServedKind, target: Target) -> Answer:
        """GET of a pod's ``log``: one line of the simulated kubelet."""
        pod = self._writer.get_object(served.storage, target.namespace, target.name)
        if pod is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        containers = [container["name"] for container in pod["spec"].get("containers") or ()]
        requested = call.query.get("container", "")
        if not requested and len(containers) > 1:
            raise status_errors.bad_request(
                "a container name must be specified for pod"
                f" {target.name}, choose one of: [{' '.join(containers)}]"
            )
        name = requested or containers[0]
        if name not in containers:
            raise status_errors.bad_request(f"container {name} is not valid for pod {target.name}")
        if not pod["spec"].get("nodeName"):
            return Answer(status=204, body=b"")
        started = (pod.get("status") or {}).get("startTime", "")
        line = f"{started} {target.namespace}/{target.name} {name}: simulated, no process runs\n"
        return Answer(body=line.encode(), content_type="text/plain")

    def _resolve_bound_object(self, reference: Obj | None, target: Target) -> BoundObject | None:
        if not reference:
            return None
        kind, name = reference.get("kind", ""), reference.get("name", "")
        storage = {"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}.get(kind)
        if storage is None:
            raise status_errors.bad_request(f"cannot bind token to object of type {kind}")
        namespace = "" if kind == "Node" else target.namespace
        bound_object = self._writer.get_object(storage, namespace, name)
        served = self._registry.by_path("", "v1", storage[1:])
        assert served is not None
        if bound_object is None:
            raise status_errors.not_found(served.kind.resource, name)
        uid = bound_object["metadata"]["uid"]
        if reference.get("uid") and reference["uid"] != uid:
            raise status_errors.conflict(
                served.kind.resource,
                name,
                f"the UID in the bound object reference ({reference['uid']}) does not match the"
                f" UID in record ({uid})",
            )
        return BoundObject(kind=kind, name=name, uid=uid)

    async def _answer_object(self, call: Call, served: ServedKind, written: WriteOutcome) -> Answer:
        return await self._reader.answer_object(call, served, written.entry)

    async def _answer_scale(self, call: Call, served: ServedKind, entry: Entry) -> Answer:
        obj = await with_conversions(lambda: bodies.read_stored(served, entry))
        return self._reader.answer(call, bodies.encode_plain(scale_of(served, obj)))


def _size_has_owner(served: ServedKind, obj: Obj) -> bool:
    keys = [f"f:{name}" for name in served.rules.scale_paths[0].strip(".").split(".")]
    for entry in obj["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1")
        for key in keys:
            fields = fields.get(key) if isinstance(fields, dict) else None
        if fields is not None:
            return True
    return False


def _set_custom_size(served: ServedKind, obj: Obj, replicas: Any) -> Obj:
    path = served.rules.scale_paths[0]
    if type(replicas) is not int or not 0 <= replicas < 2**31:
        error = field_errors.invalid(path, replicas, "should be a non-negative integer")
        raise field_errors.new_invalid(served.kind.resource, obj["metadata"]["name"], [error])
    _put(obj, path, replicas)
    return obj


def _check_replicas(name: str, replicas: Any) -> int:
    if not isinstance(replicas, int) or replicas < 0:
        error = field_errors.invalid(
            "spec.replicas", replicas, "must be greater than or equal to 0"
        )
        raise status_errors.invalid_scale(name, error)
    return replicas


def scale_of(served: ServedKind, obj: Obj) -> Obj:
    """The Scale of an object."""
    spec_path, status_path, selector_path = served.rules.scale_paths
    meta = obj["metadata"]
    scale: Obj = {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            key: meta[key]
            for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
            if key in meta
        },
        "spec": {},
        "status": {"replicas": _get(obj, status_path) or 0},
    }
    replicas = _get(obj, spec_path)
    if replicas:
        scale["spec"]["replicas"] = replicas
    pod_selector = _get(obj, selector_path) if selector_path else None
    if isinstance(pod_selector, str):
        scale["status"]["selector"] = pod_selector
    elif isinstance(pod_selector, dict):
        if "matchLabels" in pod_selector or "matchExpressions" in pod_selector:
            text = str(selector.from_object(msgspec.convert(pod_selector, LabelSelector)))
        else:
            text = str(selector.from_labels(pod_selector))
        scale["status"]["selector"] = text
    return scale


def _get(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _put(obj: Obj, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value
