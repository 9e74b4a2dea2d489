"""The four patches: JSON patch, merge patch, strategic merge patch, server-side apply.

The first three change the present object; the result is decoded with the schema like the object in
a PUT. An apply states the fields of one manager; it creates the object if it is missing.
"""

from __future__ import annotations

from typing import Any

from zonewise.api import field_errors
from zonewise.api.errors import ParseError, PatchFailed
from zonewise.api.text import jsontext
from zonewise.embedded.apiserver.codec import bodies
from zonewise.embedded.apiserver.handlers import ownership
from zonewise.embedded.apiserver.handlers.writing import Change, WriteOutcome, Writer
from zonewise.embedded.apiserver.registry import ServedKind
from zonewise.embedded.apiserver.request import negotiation, status_errors
from zonewise.embedded.apiserver.request.call import Call
from zonewise.embedded.apiserver.request.paths import Target
from zonewise.embedded.machinery.decoding import decoder
from zonewise.embedded.machinery.fields import managed_fields
from zonewise.embedded.machinery.patch import jsonpatch, mergepatch, strategic

Obj = dict[str, Any]

TYPE_META_FIELDS = ("kind", "apiVersion")


class Patcher:
    """Patches objects of any kind."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def patch(
        self, call: Call, served: ServedKind, target: Target, *, subresource: str = ""
    ) -> WriteOutcome:
        """Apply the patch in a request."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        check_options(call, format)
        if format == "apply":
            return await self._apply(call, served, target, subresource)
        if format == "strategic" and served.custom:
            raise status_errors.unsupported_media_type(
                [
                    media_type
                    for media_type in negotiation.PATCH_TYPES
                    if "strategic" not in media_type
                ]
            )
        change = self.change(call, served)
        return await self._writer.change(call, served, target, change, subresource=subresource)

    def change_without_schema(self, call: Call) -> Change:
        """The change of a patch to a value without a schema, such as a Scale."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        patch = _read_patch(call, list if format == "json" else dict)

        def apply_patch(value: Obj) -> Obj:
            try:
                result = (
                    jsonpatch.apply(value, patch, lenient=True)
                    if format == "json"
                    else mergepatch.apply(value, patch)
                )
            except ParseError:
                raise status_errors.patch_not_applicable() from None
            if not isinstance(result, dict):
                raise status_errors.invalid_patch(
                    _encode_text(result), "the result is not an object"
                )
            return result

        return apply_patch

    def change(self, call: Call, served: ServedKind) -> Change:
        """The change of a patch to an object, except of an apply."""
        format = negotiation.patch_format(call.headers.get("content-type", ""))
        patch = _read_patch(call, list if format == "json" else dict)

        def apply_patch(obj: Obj) -> Obj:
            try:
                if format == "json":
                    result = jsonpatch.apply(obj, patch, lenient=True)
                elif format == "merge":
                    result = mergepatch.apply(obj, patch)
                else:
                    result = strategic.apply(obj, patch, served.kind.schema)
                    result |= {key: obj[key] for key in TYPE_META_FIELDS}  # whatever the patch has
            except PatchFailed as error:
                if format == "strategic":
                    raise status_errors.server_error(str(error)) from None
                raise status_errors.patch_not_applicable() from None
            except ParseError as error:
                if format == "json":
                    if all(isinstance(operation, dict) for operation in patch):
                        raise status_errors.patch_not_applicable() from None
                    raise status_errors.bad_request(f"error decoding patch: {error}") from None
                if format == "strategic":
                    raise status_errors.server_error(str(error)) from None
                raise status_errors.invalid_patch(_encode_text(patch), str(error)) from None
            if not isinstance(result, dict):
                raise status_errors.invalid_patch(
                    _encode_text(result), "the result is not an object"
                )
            _check_kind(result, obj)
            if not isinstance(result.setdefault("metadata", {}) or {}, dict):
                raise status_errors.invalid_patch(
                    _encode_text(result), "the result is not an object"
                )
            if not result["metadata"]:
                raise status_errors.bad_request("the name of the object is not in its metadata")
            return bodies.decode_patched(call, served, result, obj)

        return apply_patch

    async def _apply(
        self, call: Call, served: ServedKind, target: Target, subresource: str
    ) -> WriteOutcome:
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
        has_name = bool(meta.get("name"))
        name = meta.setdefault("name", target.name)
        if name != target.name:
            raise status_errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL"
                f" ({target.name})"
            )
        manager, force = call.query["fieldManager"], call.flag("force")
        now = self._writer.context(call).now

        def apply_to(obj: Obj | None) -> Obj:
            result = ownership.apply_configuration(
                served,
                bodies.copy(config),
                obj,
                manager=manager,
                now=now,
                force=force,
                subresource=subresource,
            )
            if (
                served.custom
                and obj is not None
                and managed_fields.without_managed_fields(result)
                == managed_fields.without_managed_fields(obj)
            ):
                return result  # an apply without a change does not set new defaults either
            return bodies.decode_patched(call, served, result)

        if self._writer.get_object(served.storage, target.namespace, target.name) is None:
            if subresource:
                raise status_errors.not_found(resource, target.name)
            if meta.get("uid"):
                raise status_errors.apply_uid_mismatch(resource, target.name, meta["uid"])
            meta.pop("resourceVersion", None)
            if not has_name:
                raise status_errors.bad_request("metadata.name is needed to create what is applied")
            call.may_create()
            return await self._writer.create(call, served, target, apply_to(None), set_owners=False)
        return await self._writer.change(
            call, served, target, apply_to, subresource=subresource, set_owners=False
        )


def _report_problems(call: Call, problems: tuple[str, ...]) -> None:
    if problems and bodies.field_validation(call) == "Strict":
        text = decoder.strict_error_message(problems)
        raise status_errors.invalid_patch(call.body.decode("utf-8", "replace"), text)
    call.warnings.extend(problems)


def _check_kind(result: Obj, obj: Obj) -> None:
    for key in TYPE_META_FIELDS:
        if result.get(key, obj.get(key)) != obj.get(key):
            raise status_errors.invalid_patch(_encode_text(result), f"a patch may not change {key}")


def _read_patch(call: Call, expected_class: type) -> Any:
    try:
        patch = jsontext.read(call.body, finite=True)
    except jsontext.NotJSON as error:
        raise status_errors.bad_request(f"error decoding patch: {error}") from None
    strict = expected_class is dict and bodies.field_validation(call) != "Ignore"
    if strict and jsontext.has_duplicates(call.body, patch):
        _report_problems(call, decoder.find_duplicates(call.body))
    if isinstance(patch, list) and len(patch) > jsonpatch.OPERATION_LIMIT:
        raise status_errors.too_many_operations(len(patch), jsonpatch.OPERATION_LIMIT)
    if not isinstance(patch, expected_class):
        expected = "[]jsonpatch.Operation" if expected_class is list else "map[string]interface {}"
        actual = "array" if isinstance(patch, list) else "object"
        if not isinstance(patch, list | dict):
            actual = "string" if isinstance(patch, str) else "number"
        raise status_errors.bad_request(
            f"error decoding patch: json: cannot unmarshal {actual} into Go value of type"
            f" {expected}"
        )
    return patch


def check_options(call: Call, format: str) -> None:
    """Refuse parameters that are invalid for this patch."""
    if format == "apply":
        if not call.query.get("fieldManager"):
            error = field_errors.required("fieldManager", "is required for apply patch")
            raise status_errors.invalid_options("PatchOptions", [error])
    elif "force" in call.query:
        error = field_errors.forbidden("force", "may not be specified for non-apply patch")
        raise status_errors.invalid_options("PatchOptions", [error])


def _encode_text(value: Any) -> str:
    return bodies.encode_plain(value).decode()
