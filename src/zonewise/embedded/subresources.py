"""What lies below an object beside its status: scale, binding, tokens, finalizers, logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from zonewise.api import faults, selector, times
from zonewise.api.errors import Status
from zonewise.api.meta import LabelSelector
from zonewise.api.resource import Resource
from zonewise.embedded import bodies, negotiation, ownership, plugins, refusals
from zonewise.embedded.admission import Face
from zonewise.embedded.call import Answer, Call, encode_status
from zonewise.embedded.front import Verb
from zonewise.embedded.patching import Patcher, check_options
from zonewise.embedded.paths import Target
from zonewise.embedded.reading import Reader
from zonewise.embedded.registry import Registry, Served
from zonewise.embedded.state import State
from zonewise.embedded.tokens import AUDIENCE, LONGEST, SHORTEST, Binding, Tokens
from zonewise.embedded.writing import Writer, Written

Obj = dict[str, Any]

TOKEN_SECONDS = 3600
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
            return self._shown(call, served, written)

        async def patch(call: Call, served: Served, target: Target) -> Answer:
            written = await self._patcher.patch(call, served, target, subresource=subresource)
            return self._shown(call, served, written)

        return {"get": self._reader.get, "update": update, "patch": patch}

    async def bind(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``binding``: the scheduler's word on a pod."""
        binding = bodies.read_any(call, "Binding")
        meta = binding.get("metadata") or {}
        node = (binding.get("target") or {}).get("name", "")
        if meta.get("name", target.name) != target.name:
            raise refusals.bad_request(
                f"name in URL does not match name in Binding object: {target.name} and"
                f" {meta.get('name')}"
            )
        if not node:
            fault = faults.required("target.name")
            raise refusals.invalid_options("Binding", [fault])
        binding = await self._writer.admit(call, served, target, binding)
        meta, node = binding["metadata"], binding["target"]["name"]
        pods = served
        now = self._writer.scene(call).now

        def bound(pod: Obj) -> Obj:
            held = pod["metadata"]
            if meta.get("uid") and meta["uid"] != held["uid"]:
                raise refusals.conflict(
                    pods.kind.resource,
                    target.name,
                    f"Precondition failed: UID in precondition: {meta['uid']},"
                    f" UID in object meta: {held['uid']}",
                )
            if held.get("deletionTimestamp"):
                raise refusals.conflict(
                    BINDING,
                    target.name,
                    f"pod {target.name} is being deleted, cannot be assigned to a host",
                )
            if pod["spec"].get("nodeName"):
                raise refusals.conflict(
                    BINDING,
                    target.name,
                    f'pod {target.name} is already assigned to node "{pod["spec"]["nodeName"]}"',
                )
            if pod["spec"].get("schedulingGates"):
                raise refusals.conflict(
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
            raise refusals.not_found(served.kind.resource, target.name)
        return self._scaled(call, served, bodies.read_stored(served, entry.raw))

    async def update_scale(self, call: Call, served: Served, target: Target) -> Answer:
        """PUT of ``scale``."""
        scale = bodies.read_any(call, "Scale")
        return await self._rescale(call, served, target, lambda _: scale, again=False)

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
            raise refusals.bad_request("an apply of scale takes a Scale of autoscaling/v1")
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
            return ownership.applied(
                served,
                bodies.copied(config),
                obj,
                manager=call.query["fieldManager"],
                now=self._writer.scene(call).now,
                force=call.flag("force"),
                subresource="scale",
            )

        written = await self._writer.change(
            call, served, target, scaled, subresource="scale", own=False
        )
        return self._scaled(call, served, bodies.read_stored(served, written.entry.raw))

    def _has_owner(self, served: Served, target: Target) -> bool:
        """Whether the size has an owner; who changes one without applying becomes none itself."""
        entry = self._state.latest(served.storage, target.namespace, target.name)
        return entry is not None and _owned(served, bodies.read_stored(served, entry.raw))

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
            if meta.get("name", target.name) != target.name:
                raise refusals.bad_request(
                    f"the name of the object ({meta['name']}) does not match the name on the URL"
                    f" ({target.name})"
                )
            version = meta.get("resourceVersion")
            if version and version != obj["metadata"]["resourceVersion"]:
                raise refusals.conflict(served.kind.resource, target.name)
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
            own=self._has_owner(served, target),
            face=Face(show=lambda obj: scale_of(served, obj), take=sized),
        )
        return self._scaled(call, served, bodies.read_stored(served, written.entry.raw))

    async def token(self, call: Call, served: Served, target: Target) -> Answer:
        """POST to ``token``: a token for a service account."""
        request = bodies.read_any(call, "TokenRequest")
        account = self._writer.look("/serviceaccounts", target.namespace, target.name)
        if account is None:
            raise refusals.not_found(served.kind.resource, target.name)
        request = await self._writer.admit(call, served, target, request)
        spec = request.get("spec") or {}
        seconds = spec.get("expirationSeconds") or TOKEN_SECONDS
        found = []
        if seconds < SHORTEST:
            text = "may not specify a duration less than 10 minutes"
            found.append(faults.invalid("spec.expirationSeconds", seconds, text))
        elif seconds > LONGEST:
            text = "may not specify a duration larger than 2^32 seconds"
            found.append(faults.invalid("spec.expirationSeconds", seconds, text))
        if found:
            raise refusals.invalid_token_request(found)
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
                "creationTimestamp": self._writer.scene(call).now,
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
        return self._shown(call, served, written)

    async def log(self, call: Call, served: Served, target: Target) -> Answer:
        """GET of a pod's ``log``: the simulated kubelet has a line for each container."""
        pod = self._writer.look(served.storage, target.namespace, target.name)
        if pod is None:
            raise refusals.not_found(served.kind.resource, target.name)
        containers = [one["name"] for one in pod["spec"].get("containers") or ()]
        wanted = call.query.get("container", "")
        if not wanted and len(containers) > 1:
            raise refusals.bad_request(
                "a container name must be specified for pod"
                f" {target.name}, choose one of: [{' '.join(containers)}]"
            )
        name = wanted or containers[0]
        if name not in containers:
            raise refusals.bad_request(f"container {name} is not valid for pod {target.name}")
        if not pod["spec"].get("nodeName"):
            raise refusals.bad_request(f"pod {target.name} does not have a host assigned")
        started = (pod.get("status") or {}).get("startTime", "")
        line = f"{started} {target.namespace}/{target.name} {name}: simulated, no process runs\n"
        return Answer(body=line.encode(), content_type="text/plain")

    def _bound(self, reference: Obj | None, target: Target) -> Binding | None:
        if not reference:
            return None
        kind, name = reference.get("kind", ""), reference.get("name", "")
        storage = {"Pod": "/pods", "Secret": "/secrets", "Node": "/nodes"}.get(kind)
        if storage is None:
            raise refusals.bad_request(f"cannot bind token to object of type {kind}")
        place = "" if kind == "Node" else target.namespace
        held = self._writer.look(storage, place, name)
        served = self._registry.at("", "v1", storage[1:])
        assert served is not None
        if held is None:
            raise refusals.not_found(served.kind.resource, name)
        uid = held["metadata"]["uid"]
        if reference.get("uid") and reference["uid"] != uid:
            raise refusals.conflict(
                served.kind.resource,
                name,
                f"the UID in the bound object reference ({reference['uid']}) does not match the"
                f" UID in record ({uid})",
            )
        return Binding(kind=kind, name=name, uid=uid)

    def _shown(self, call: Call, served: Served, written: Written) -> Answer:
        return self._reader.shown(call, served, written.entry)

    def _scaled(self, call: Call, served: Served, obj: Obj) -> Answer:
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
        fault = faults.invalid(path, replicas, "should be a non-negative integer")
        raise faults.refusal(served.kind.resource, obj["metadata"]["name"], [fault])
    _put(obj, path, replicas)
    return obj


def _size(name: str, replicas: Any) -> int:
    if not isinstance(replicas, int) or replicas < 0:
        fault = faults.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
        raise refusals.invalid_scale(name, fault)
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
