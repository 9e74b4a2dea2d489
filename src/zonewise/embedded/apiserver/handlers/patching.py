"""The four patches: JSON patch, merge patch, strategic merge patch, server-side apply.

The first three turn the object as it is into another one, which then passes the schema as a
client's whole object would. An apply states the fields of one manager; it creates the object if it
is missing.
"""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import ParseError, PatchFailed
from zonewise.api.text import jsontext
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers import ownership
from zonewise.embedded.apiserver.handlers.writing import Change, Writer, Written
from zonewise.embedded.apiserver.registry import Served
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.machinery.decoding import validation
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.patch import jsonpatch, mergepatch, strategic

Obj = dict[str, Any]

KIND = ("kind", "apiVersion")


class Patcher:
    """Patches objects of any kind."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def patch(
        self, call: Call, served: Served, target: Target, *, subresource: str = ""
    ) -> Written:
        """Carry out whichever patch the request is."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        check_options(call, format)
        if format == "apply":
            return await self._apply(call, served, target, subresource)
        if format == "strategic" and served.custom:
            raise status_errors.unsupported_media_type(
                [kind for kind in negotiation.PATCH_TYPES if "strategic" not in kind]
            )
        change = self.change(call, served)
        return await self._writer.change(call, served, target, change, subresource=subresource)

    def plain_change(self, call: Call) -> Change:
        """What a patch does to a value that has no schema here, such as a Scale."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        patch = _read(call, list if format == "json" else dict)

        def patched(value: Obj) -> Obj:
            try:
                result = (
                    jsonpatch.apply(value, patch, lenient=True)
                    if format == "json"
                    else mergepatch.apply(value, patch)
                )
            except ParseError:
                raise status_errors.impossible_patch() from None
            if not isinstance(result, dict):
                raise status_errors.invalid_patch(_text(result), "the outcome is not an object")
            return result

        return patched

    def change(self, call: Call, served: Served) -> Change:
        """What a patch other than an apply does to an object."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        patch = _read(call, list if format == "json" else dict)

        def patched(obj: Obj) -> Obj:
            try:
                if format == "json":
                    result = jsonpatch.apply(obj, patch, lenient=True)
                elif format == "merge":
                    result = mergepatch.apply(obj, patch)
                else:
                    result = strategic.apply(obj, patch, served.kind.type)
                    result |= {key: obj[key] for key in KIND}  # whatever the patch calls it
            except PatchFailed as error:
                if format == "strategic":
                    raise status_errors.plain_failure(str(error)) from None
                raise status_errors.impossible_patch() from None
            except ParseError as error:
                if format == "json":
                    if all(isinstance(one, dict) for one in patch):
                        raise status_errors.impossible_patch() from None
                    raise status_errors.bad_request(f"error decoding patch: {error}") from None
                if format == "strategic":
                    raise status_errors.plain_failure(str(error)) from None
                raise status_errors.invalid_patch(_text(patch), str(error)) from None
            if not isinstance(result, dict):
                raise status_errors.invalid_patch(_text(result), "the outcome is not an object")
            _check_kind(result, obj)
            if not isinstance(result.setdefault("metadata", {}) or {}, dict):
                raise status_errors.invalid_patch(_text(result), "the outcome is not an object")
            if not result["metadata"]:
                raise status_errors.bad_request("the name of the object is not in its metadata")
            return bodies.accept(call, served, result, obj)

        return patched

    async def _apply(self, call: Call, served: Served, target: Target, subresource: str) -> Written:
        config = bodies.read_configuration(call)
        resource = served.kind.resource
        version, kind = config.get("apiVersion", ""), config.get("kind", "")
        if not isinstance(version, str) or not isinstance(kind, str):
            raise status_errors.bad_request("apiVersion and kind must be text")
        if not version or not kind:
            raise status_errors.bad_request(f"invalid object type: {version or '/'}, Kind={kind}")
        if (version.rpartition("/")[0], kind) != (resource.group, resource.kind):
            raise status_errors.bad_request(
                f"invalid object type: {version}, Kind={kind}, expected {resource.api_version},"
                f" Kind={resource.kind}"
            )
        meta = config.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise status_errors.bad_request("metadata is not an object")
        named = bool(meta.get("name"))
        name = meta.setdefault("name", target.name)
        if name != target.name:
            raise status_errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({target.name})"
            )
        manager, force = call.query["fieldManager"], call.flag("force")
        now = self._writer.context(call).now

        def applied(obj: Obj | None) -> Obj:
            result = ownership.applied(
                served,
                bodies.copied(config),
                obj,
                manager=manager,
                now=now,
                force=force,
                subresource=subresource,
            )
            if (
                served.custom
                and obj is not None
                and managed_fields.bare(result) == managed_fields.bare(obj)
            ):
                return result  # a patch without a change does not set new defaults either
            return bodies.accept(call, served, result)

        if self._writer.look(served.storage, target.namespace, target.name) is None:
            if subresource:
                raise status_errors.not_found(resource, target.name)
            if meta.get("uid"):
                raise status_errors.not_found_to_apply(resource, target.name, meta["uid"])
            meta.pop("resourceVersion", None)
            if not named:
                raise status_errors.bad_request("metadata.name is needed to create what is applied")
            call.may_create()
            return await self._writer.create(call, served, target, applied(None), own=False)
        return await self._writer.change(
            call, served, target, applied, subresource=subresource, own=False
        )


def _complain(call: Call, problems: tuple[str, ...]) -> None:
    if problems and bodies.strictness(call) == "Strict":
        text = validation.strict_error(problems)
        raise status_errors.invalid_patch(call.body.decode("utf-8", "replace"), text)
    call.warnings.extend(problems)


def _check_kind(result: Obj, obj: Obj) -> None:
    for key in KIND:
        if result.get(key, obj.get(key)) != obj.get(key):
            raise status_errors.invalid_patch(_text(result), f"a patch may not change {key}")


def _read(call: Call, shape: type) -> Any:
    try:
        patch = jsontext.read(call.body, finite=True)
    except jsontext.NotJSON as error:
        raise status_errors.bad_request(f"error decoding patch: {error}") from None
    strict = shape is dict and bodies.strictness(call) != "Ignore"
    if strict and jsontext.has_duplicates(call.body, patch):
        _complain(call, validation.duplicates(call.body))
    if isinstance(patch, list) and len(patch) > jsonpatch.OPERATION_LIMIT:
        raise status_errors.too_many_operations(len(patch), jsonpatch.OPERATION_LIMIT)
    if not isinstance(patch, shape):
        wanted = "[]jsonpatch.Operation" if shape is list else "map[string]interface {}"
        have = "array" if isinstance(patch, list) else "object"
        if not isinstance(patch, list | dict):
            have = "string" if isinstance(patch, str) else "number"
        raise status_errors.bad_request(
            f"error decoding patch: json: cannot unmarshal {have} into Go value of type {wanted}"
        )
    return patch


def check_options(call: Call, format: str) -> None:
    """Refuse parameters that make no sense for this patch."""
    if format == "apply":
        if not call.query.get("fieldManager"):
            fault = field_errors.required("fieldManager", "is required for apply patch")
            raise status_errors.invalid_options("PatchOptions", [fault])
    elif "force" in call.query:
        fault = field_errors.forbidden("force", "may not be specified for non-apply patch")
        raise status_errors.invalid_options("PatchOptions", [fault])


def _text(value: Any) -> str:
    return bodies.encode_plain(value).decode()
