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
from zonewise.embedded.apiserver.auth.tokens import AUDIENCE, LONGEST, SHORTEST, Binding, Tokens
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.conversion.versions import settled
from zonewise.embedded.apiserver.handlers import ownership
from zonewise.embedded.apiserver.handlers.patching import Patcher, check_options
from zonewise.embedded.apiserver.handlers.reading import Reader
from zonewise.embedded.apiserver.handlers.router import Verb
from zonewise.embedded.apiserver.handlers.update_checks import check_identity, check_version
from zonewise.embedded.apiserver.handlers.writing import Writer, Written
from zonewise.embedded.apiserver.registry import Registry, Served
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Answer, Call, encode_status
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.apiserver.store.entry import Entry
from zonewise.embedded.apiserver.store.state import State
from zonewise.embedded.machinery.decoding import validation

Obj = dict[str, Any]

TOKEN_SECONDS = 3600
SCALE = "autoscaling/v1"
OLD_SCALES = frozenset({"extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"})
BINDING = Resource("", "v1", "Binding", "pods/binding")
"""What a refused binding is said to be about."""


class Subresources:
    """The subresources that behave alike for every kind that has them."""

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

    def whole(self, subresource: str) -> dict[str, Verb]:
        """Verbs of a subresource that takes and shows the whole object."""

        async def update(call: Call, served: Served, target: Target) -> Answer:
            obj = bodies.read(call, served)
            written = await self._writer.change(
                call,
                served,
                target,
                lambda _: bodies.copied(obj),
                subresource=subresource,
                again=False,
            )
            return await self._shown(call, served, written)

        async def patch(call: Call, served: Served, target: Target) -> Answer:
            written = await self._patcher.patch(call, served, target, subresource=subresource)
            return await self._shown(call, served, written)

        return {"get": self._reader.get, "update": update, "patch": patch}

    async def bind(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``binding``: the scheduler's word on a pod."""
        binding = bodies.read_any(call, "Binding")
        meta = binding.get("metadata") or {}
        node = (binding.get("target") or {}).get("name", "")
        if meta.get("name", "") != target.name:
            raise status_errors.bad_request(
                f"name in URL does not match name in Binding object: {target.name} and"
                f" {meta.get('name', '')}"
            )
        if not node:
            fault = field_errors.required("target.name")
            raise status_errors.invalid_options("Binding", [fault])
        binding = await self._writer.admit(call, served, target, binding)
        meta, node = binding["metadata"], binding["target"]["name"]
        pods = served
        now = self._writer.context(call).now

        def bound(pod: Obj) -> Obj:
            held = pod["metadata"]
            if meta.get("uid") and meta["uid"] != held["uid"]:
                raise status_errors.conflict(
                    pods.kind.resource,
                    target.name,
                    f"Precondition failed: UID in precondition: {meta['uid']},"
                    f" UID in object meta: {held['uid']}",
                )
            if held.get("deletionTimestamp"):
                raise status_errors.conflict(
                    BINDING,
                    target.name,
                    f"pod {target.name} is being deleted, cannot be assigned to a host",
                )
            if pod["spec"].get("nodeName"):
                raise status_errors.conflict(
                    BINDING,
                    target.name,
                    f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"',
                )
            if pod["spec"].get("schedulingGates"):
                raise status_errors.conflict(
                    BINDING,
                    target.name,
                    f"pod {target.name} has non-empty .spec.schedulingGates",
                )
            pod["spec"]["nodeName"] = node
            held.setdefault("annotations", {}).update(meta.get("annotations") or {})
            if not held["annotations"]:
                del held["annotations"]
            plugins.bound_labels(pod, self._writer.look("/nodes", "", node))
            status = pod.setdefault("status", {})
            status.pop("nominatedNodeName", None)
            conditions = status.setdefault("conditions", [])
            conditions[:] = [one for one in conditions if one.get("type") != "PodScheduled"]
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
            call, pods, target, bound, subresource="binding", admitted=True, own=False
        )
        return Answer(status=201, body=encode_status(Status(status="Success", code=201)))

    async def bind_by_name(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``bindings``, the older way to say the same."""
        binding = bodies.read_any(call, "Binding")
        name = (binding.get("metadata") or {}).get("name", "")
        pods = self._registry.at("", "v1", "pods")
        assert pods is not None
        place = Target("", "v1", "pods", target.namespace, name, "binding")
        return await self.bind(call, pods, place)

    async def get_scale(self, call: Call, served: Served, target: Target) -> Answer:
        """GET of ``scale``."""
        entry = self._state.get(served.storage, target.namespace, target.name)
        if entry is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        return await self._scaled(call, served, entry)

    async def update_scale(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT of ``scale``."""
        scale = bodies.read_any(call, "Scale")
        self._check_scale(scale)
        check_identity(served, target, scale.setdefault("metadata", {}))
        return await self._rescale(call, served, target, lambda _: scale, again=False)

    def _check_scale(self, body: Obj) -> None:
        """Refuse what is no Scale, or one of an unsupported version."""
        version, kind = body.get("apiVersion") or SCALE, body.get("kind") or "Scale"
        if (version, kind) == (SCALE, "Scale"):
            return
        if kind == "Scale" and version in OLD_SCALES:
            raise status_errors.bad_request(
                f"the API version in the data ({version}) does not match the expected API version"
                f" ({SCALE})"
            )
        number = version.rpartition("/")[2]
        known = self._registry.of(version, kind)
        if known is not None and not known.custom:
            why = f"converting ({number}.{kind}) to (autoscaling.Scale): unknown conversion"
        else:
            why = (
                f'no kind "{kind}" is registered for version "{version}" in scheme'
                ' "pkg/runtime/scheme.go:111"'
            )
        raise status_errors.bad_request(validation.unhandled(kind, number, "Scale", why))

    async def patch_scale(self, call: Call, served: Served, target: Target) -> Answer:
        """PATCH of ``scale``."""
        if negotiation.patch_format(call.headers.get("content-type", "")) == "apply":
            return await self._apply_scale(call, served, target)
        change = self._patcher.plain_change(call)
        return await self._rescale(call, served, target, change, again=True)

    async def _apply_scale(self, call: Call, served: Served, target: Target) -> Answer:
        """An apply of ``scale`` is one of the object with nothing but its size."""
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
            _put(config, served.rules.scale_paths[0], _size(target.name, replicas))

        def scaled(obj: Obj) -> Obj:
            result = ownership.applied(
                served,
                bodies.copied(config),
                obj,
                manager=call.query["fieldManager"],
                now=self._writer.context(call).now,
                force=call.flag("force"),
                subresource="scale",
            )
            check_identity(served, target, {"name": target.name, **(scale.get("metadata") or {})})
            return result

        written = await self._writer.change(
            call, served, target, scaled, subresource="scale", own=False
        )
        return await self._scaled(call, served, written.entry)

    async def _has_owner(self, served: Served, target: Target) -> bool:
        """Whether the size has a field owner; changing it without apply does not make one."""
        entry = self._state.latest(served.storage, target.namespace, target.name)
        if entry is None:
            return False
        return _owned(served, await settled(lambda: bodies.read_stored(served, entry)))

    async def _rescale(
        self,
        call: Call,
        served: Served,
        target: Target,
        change: Callable[[Obj], Obj],
        *,
        again: bool,
    ) -> Answer:
        def scaled(obj: Obj) -> Obj:
            scale = bodies.typed("Scale", change(scale_of(served, obj)))
            meta = scale.get("metadata") or {}
            check_identity(served, target, meta)
            if meta.get("resourceVersion", "0") in {"", "0"}:  # whatever its size was
                meta["resourceVersion"] = obj["metadata"]["resourceVersion"]
            check_version(served, target.name, meta, obj["metadata"], put=not again)
            return sized(obj, scale)

        def sized(obj: Obj, scale: Obj) -> Obj:
            if served.custom:
                return _rescaled(served, obj, (scale.get("spec") or {}).get("replicas", 0))
            replicas = _size(target.name, (scale.get("spec") or {}).get("replicas", 0))
            _put(obj, served.rules.scale_paths[0], replicas)
            return obj

        written = await self._writer.change(
            call,
            served,
            target,
            scaled,
            subresource="scale",
            again=again,
            own=await self._has_owner(served, target),
            view=SubresourceView(show=lambda obj: scale_of(served, obj), take=sized),
        )
        return await self._scaled(call, served, written.entry)

    async def token(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``token``: a token for a service account."""
        request = bodies.read_any(call, "TokenRequest")
        account = self._writer.look("/serviceaccounts", target.namespace, target.name)
        if account is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        request = await self._writer.admit(call, served, target, request)
        spec = request.get("spec") or {}
        seconds = spec.get("expirationSeconds") or TOKEN_SECONDS
        found = []
        if seconds < SHORTEST:
            text = "may not specify a duration less than 10 minutes"
            found.append(field_errors.invalid("spec.expirationSeconds", seconds, text))
        elif seconds > LONGEST:
            text = "may not specify a duration larger than 2^32 seconds"
            found.append(field_errors.invalid("spec.expirationSeconds", seconds, text))
        if found:
            raise status_errors.invalid_token_request(found)
        audiences = tuple(spec.get("audiences") or (AUDIENCE,))
        token, ends = self._tokens.issue(
            namespace=target.namespace,
            account=target.name,
            uid=account["metadata"]["uid"],
            audiences=audiences,
            seconds=seconds,
            bound=self._bound(spec.get("boundObjectRef"), target),
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
                "expirationTimestamp": times.format_time(times.from_epoch(ends)),
            },
        }
        return Answer(status=201, body=bodies.encode_plain(answer))

    async def finalize(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT of a namespace's ``finalize``."""
        obj = bodies.read(call, served)

        def finalized(old: Obj) -> Obj:
            status = old.get("status")
            new = bodies.copied(obj)
            if status is not None:
                new["status"] = status
            return new

        written = await self._writer.change(
            call, served, target, finalized, subresource="finalize", again=False
        )
        return await self._shown(call, served, written)

    async def log(self, call: Call, served: Served, target: Target) -> Answer:
        """GET of a pod's ``log``: the simulated kubelet has a line for each container."""
        pod = self._writer.look(served.storage, target.namespace, target.name)
        if pod is None:
            raise status_errors.not_found(served.kind.resource, target.name)
        containers = [one["name"] for one in pod["spec"].get("containers") or ()]
        wanted = call.query.get("container", "")
        if not wanted and len(containers) > 1:
            raise status_errors.bad_request(
                "a container name must be specified for pod"
                f" {target.name}, choose one of: [{' '.join(containers)}]"
            )
        name = wanted or containers[0]
        if name not in containers:
            raise status_errors.bad_request(f"container {name} is not valid for pod {target.name}")
        if not pod["spec"].get("nodeName"):
            return Answer(status=204, body=b"")
        started = (pod.get("status") or {}).get("startTime", "")
        line = f"{started} {target.namespace}/{target.name} {name}: simulated, no process runs\n"
        return Answer(body=line.encode(), content_type="text/plain")

    def _bound(self, reference: Obj | None, target: Target) -> Binding | None:
        if not reference:
            return None
        kind, name = reference.get("kind", ""), reference.get("name", "")
        storage = {"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}.get(kind)
        if storage is None:
            raise status_errors.bad_request(f"cannot bind token to object of type {kind}")
        place = "" if kind == "Node" else target.namespace
        held = self._writer.look(storage, place, name)
        served = self._registry.at("", "v1", storage[1:])
        assert served is not None
        if held is None:
            raise status_errors.not_found(served.kind.resource, name)
        uid = held["metadata"]["uid"]
        if reference.get("uid") and reference["uid"] != uid:
            raise status_errors.conflict(
                served.kind.resource,
                name,
                f"the UID in the bound object reference ({reference['uid']}) does not match the"
                f" UID in record ({uid})",
            )
        return Binding(kind=kind, name=name, uid=uid)

    async def _shown(self, call: Call, served: Served, written: Written) -> Answer:
        return await self._reader.shown(call, served, written.entry)

    async def _scaled(self, call: Call, served: Served, entry: Entry) -> Answer:
        obj = await settled(lambda: bodies.read_stored(served, entry))
        return self._reader.answer(call, bodies.encode_plain(scale_of(served, obj)))


def _owned(served: Served, obj: Obj) -> bool:
    keys = [f"f:{name}" for name in served.rules.scale_paths[0].strip(".").split(".")]
    for entry in obj["metadata"].get("managedFields") or ():
        fields = entry.get("fieldsV1")
        for key in keys:
            fields = fields.get(key) if isinstance(fields, dict) else None
        if fields is not None:
            return True
    return False


def _rescaled(served: Served, obj: Obj, replicas: Any) -> Obj:
    path = served.rules.scale_paths[0]
    if type(replicas) is not int or not 0 <= replicas < 2**31:
        fault = field_errors.invalid(path, replicas, "should be a non-negative integer")
        raise field_errors.refusal(served.kind.resource, obj["metadata"]["name"], [fault])
    _put(obj, path, replicas)
    return obj


def _size(name: str, replicas: Any) -> int:
    if not isinstance(replicas, int) or replicas < 0:
        fault = field_errors.invalid(
            "spec.replicas", replicas, "must be greater than or equal to 0"
        )
        raise status_errors.invalid_scale(name, fault)
    return replicas


def scale_of(served: Served, obj: Obj) -> Obj:
    """An object's size, in the words every kind shares."""
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
    chosen = _get(obj, selector_path) if selector_path else None
    if isinstance(chosen, str):
        scale["status"]["selector"] = chosen
    elif isinstance(chosen, dict):
        if "matchLabels" in chosen or "matchExpressions" in chosen:
            text = str(selector.from_object(msgspec.convert(chosen, LabelSelector)))
        else:
            text = str(selector.from_labels(chosen))
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
