"""Strategic merge patch: a merge patch with a schema of which lists are merged, and by which key.

The schema is an argument (``PatchSchema``): for a field, whether its list is merged and by which
member its items are identified. A list the schema does not call merged is replaced as a whole, an
object is merged unless the schema says otherwise. ``embedded.machinery.schema.schema.Schema`` is
such a schema.

Directives in a patch

* ``$patch: replace`` in an object takes the patch's object as it is; ``delete`` leaves an empty
  one; ``merge`` is the default spelled out (API servers refuse it). In an item of a merged list,
  ``delete`` removes the items with the same key, ``replace`` makes the other items of the patch
  the whole list.
* ``$retainKeys: [a, b]`` removes all other members; the patch may only set those.
* ``$deleteFromPrimitiveList/field: [x]`` removes plain values from a list.
* ``$setElementOrder/field: [...]`` sets the order of the items.

Order of a merged list: items of the patch are in the order of the patch (or of
``$setElementOrder``), items only the document has in the document's, and the two are interleaved by
their positions in the document. A new item has no position there, so it comes first.

As on an API server, an object that carries ``$patch`` for a field the document does not have leaves
the field absent, and nulls in what a patch adds are dropped. Unlike there, directives in an item
that a patch adds are never taken for data.

Inputs are never changed and parts are shared, so treat results as values. The work is linear in
document and patch. A malformed directive is a ParseError, a patch that does not fit the document
the special case PatchFailed; both name the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from zonewise.api.errors import ParseError, PatchFailed

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
DELETE_LIST = "$deleteFromPrimitiveList/"
SET_ORDER = "$setElementOrder/"

_ABSENT: Any = object()
_CONTAINERS = frozenset({dict, list})
_JsonKey = tuple[bool, Any]


class PatchSchema(Protocol):
    """What a strategic merge needs of a field."""

    @property
    def merge(self) -> bool:
        """Whether a list is merged instead of replaced."""

    @property
    def replace(self) -> bool:
        """Whether an object is replaced instead of merged."""

    @property
    def merge_key(self) -> str:
        """The member that identifies items; empty for lists of plain values."""

    @property
    def items(self) -> PatchSchema | None:
        """The type of a list's items."""

    def child(self, name: str) -> PatchSchema | None:
        """The type of a member, or None where no such member is known."""


def apply(
    document: dict[str, Any], patch: dict[str, Any], schema: PatchSchema | None
) -> dict[str, Any]:
    """The document after the patch; the input stays as it is."""
    try:
        return _merge_object(document, patch, schema, "")
    except RecursionError:
        raise ParseError("strategic merge patch: nested too deeply") from None


def _merge_object(
    original: dict[str, Any], patch: dict[str, Any], schema: PatchSchema | None, path: str
) -> dict[str, Any]:
    directive = patch.get(DIRECTIVE, "merge")
    if directive == "replace":
        return _clean_members(patch)
    if directive == "delete":
        return {}
    if directive != "merge":
        raise _malformed(
            path, f"$patch is not one of replace, delete and merge: {_format(directive)}"
        )
    result = _retain_keys(original, patch, path)
    directives = [name for name in patch if name[:1] == "$"]
    ordered = _merge_ordered_fields(result, patch, schema, path) if directives else ()
    for name in directives:
        if name.startswith(DELETE_LIST):
            _delete_values(result, name.removeprefix(DELETE_LIST), patch[name], path)
    for name, value in patch.items():
        if name not in ordered and not (directives and _is_directive(name)):
            _merge_member(result, name, value, schema, path)
    return result


def _merge_member(
    result: dict[str, Any], name: str, value: Any, schema: PatchSchema | None, path: str
) -> None:
    current = result.get(name)
    field = schema.child(name) if schema is not None else None
    if value is None:
        result.pop(name, None)
    elif isinstance(current, dict) and isinstance(value, dict):
        if field is not None and field.replace:
            result[name] = _clean_members(value)
        else:
            result[name] = _merge_object(current, value, field, _join(path, name))
    elif isinstance(current, list) and isinstance(value, list):
        if field is not None and field.merge:
            result[name] = _merge_list(current, value, field, _join(path, name))
        else:
            result[name] = _clean(value)
    else:
        added = _clean(value)
        if added is _ABSENT:
            result.pop(name, None)
        else:
            result[name] = added


def _retain_keys(original: dict[str, Any], patch: dict[str, Any], path: str) -> dict[str, Any]:
    if RETAIN_KEYS not in patch:
        return dict(original)
    keys = patch[RETAIN_KEYS]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _malformed(path, f"{RETAIN_KEYS} is not a list of names")
    retained = frozenset(keys)
    for name, value in patch.items():
        if value is not None and not _is_directive(name) and name not in retained:
            raise _malformed(path, f"{RETAIN_KEYS} does not name {name!r}, which the patch sets")
    return {name: value for name, value in original.items() if name in retained}


def _delete_values(result: dict[str, Any], name: str, values: Any, path: str) -> None:
    if not name or not isinstance(values, list):
        raise _malformed(path, f"{DELETE_LIST}{name} is not a list of values of a named field")
    current = result.get(name)
    if not isinstance(current, list):
        return
    field_path = _join(path, name)
    deleted_keys = {_key_of(value, "", field_path) for value in values}
    result[name] = [item for item in current if _key_of(item, "", field_path) not in deleted_keys]


def _merge_ordered_fields(
    result: dict[str, Any], patch: dict[str, Any], schema: PatchSchema | None, path: str
) -> set[str]:
    """Merges the fields whose order the patch sets; returns their names."""
    merged_names: set[str] = set()
    for directive, order in patch.items():
        if not directive.startswith(SET_ORDER):
            continue
        name = directive.removeprefix(SET_ORDER)
        current, value = result.get(name), patch.get(name)
        if not name or not isinstance(order, list):
            raise _malformed(path, f"{directive} is not a list for a named field")
        if not all(part is None or isinstance(part, list) for part in (current, value)):
            raise PatchFailed(f"strategic merge patch: {_join(path, name)} is not a list")
        field = schema.child(name) if schema is not None else None
        if field is None or not field.merge or (current is None and name not in patch):
            continue
        field_path, key = _join(path, name), field.merge_key
        desired_keys = [_key_of(item, key, field_path) for item in order]
        _check_order(value or [], desired_keys, key, field_path)
        _merge_member(result, name, value if name in patch else [], schema, path)
        if name in result:
            original_keys = [_key_of(item, key, field_path) for item in current or []]
            result[name] = _arrange(result[name], desired_keys, original_keys, key, field_path)
        merged_names.add(name)
    return merged_names


def _check_order(
    items: Sequence[Any], desired_keys: Sequence[_JsonKey], merge_key: str, path: str
) -> None:
    """The patch's items must be in the order the patch itself sets."""
    if not desired_keys:
        return
    remaining = iter(desired_keys)
    for item in items:
        if not (isinstance(item, dict) and DIRECTIVE in item):
            key = _key_of(item, merge_key, path)
            if key not in remaining:
                raise _malformed(path, f"item {_format(key[1])} is not in the order of {SET_ORDER}")


def _merge_list(original: list[Any], patch: list[Any], field: PatchSchema, path: str) -> list[Any]:
    merge_key = field.merge_key
    if merge_key:
        original, patch, replaced = _split_item_directives(original, patch, merge_key, path)
        if replaced:
            return patch
    merged: list[Any] = []
    positions: dict[_JsonKey, int] = {}
    for item in original:
        key = _key_of(item, merge_key, path)
        if merge_key or key not in positions:
            positions.setdefault(key, len(merged))
            merged.append(item)
    original_keys = list(positions)
    desired_keys: list[_JsonKey] = []
    for item in patch:
        key = _key_of(item, merge_key, path)
        desired_keys.append(key)
        position = positions.get(key)
        if position is None:
            positions[key] = len(merged)
            merged.append(_clean_members(item) if merge_key else item)
        elif merge_key:
            item_path = f"{path}[{merge_key}={key[1]}]"
            merged[position] = _merge_object(merged[position], item, field.items, item_path)
    return _arrange(merged, desired_keys, original_keys, merge_key, path)


def _split_item_directives(
    original: list[Any], patch: list[Any], merge_key: str, path: str
) -> tuple[list[Any], list[Any], bool]:
    """Both lists without items that are directives, and whether the patch's replaces the list."""
    plain: list[Any] = []
    deleted_keys: set[_JsonKey] = set()
    replaced = False
    for item in patch:
        directive = item.get(DIRECTIVE, "merge") if isinstance(item, dict) else "merge"
        match directive:
            case "merge":
                plain.append(item)
            case "delete":
                deleted_keys.add(_key_of(item, merge_key, path))
            case "replace":
                replaced = True
            case _:
                raise _malformed(
                    path, f"$patch is not one of replace, delete and merge: {_format(directive)}"
                )
    if replaced:
        return [], [_clean_members(item) for item in plain], True
    if deleted_keys:
        original = [item for item in original if _key_of(item, merge_key, path) not in deleted_keys]
    return original, plain, False


def _arrange(
    merged: list[Any],
    desired_keys: Sequence[_JsonKey],
    original_keys: Sequence[_JsonKey],
    merge_key: str,
    path: str,
) -> list[Any]:
    """Desired items in their order, interleaved with the rest by position in the original."""
    rank: dict[_JsonKey, int] = {}
    for number, key in enumerate(desired_keys):
        rank.setdefault(key, number)
    positions: dict[_JsonKey, int] = {}
    for number, key in enumerate(original_keys):
        positions.setdefault(key, number)
    keyed_items = [(_key_of(item, merge_key, path), item) for item in merged]
    listed = (pair for pair in keyed_items if pair[0] in rank)
    desired = sorted(listed, key=lambda pair: rank[pair[0]])
    unlisted = (pair for pair in keyed_items if pair[0] not in rank)
    rest = sorted(unlisted, key=lambda pair: positions.get(pair[0], -1))
    result: list[Any] = []
    remaining = iter(rest)
    other = next(remaining, None)
    for key, item in desired:
        position = positions.get(key)
        while (
            position is not None
            and other is not None
            and positions.get(other[0], position) < position
        ):
            result.append(other[1])
            other = next(remaining, None)
        result.append(item)
    if other is not None:
        result.append(other[1])
        result.extend(pair[1] for pair in remaining)
    return result


def _key_of(item: Any, merge_key: str, path: str) -> _JsonKey:
    """What identifies an item; true and 1 are different keys."""
    value = item
    if merge_key:
        if not isinstance(item, dict) or merge_key not in item:
            raise PatchFailed(
                f"strategic merge patch: {path} has an item without its key {merge_key!r}"
            )
        value = item[merge_key]
    if type(value) in _CONTAINERS:
        raise PatchFailed(f"strategic merge patch: {path} has an item that is not a plain value")
    return value is True or value is False, value


def _clean(value: Any) -> Any:
    """A value a patch adds, without nulls and directives; absent if it is itself a directive."""
    if isinstance(value, dict):
        return _ABSENT if DIRECTIVE in value else _clean_members(value)
    if isinstance(value, list):
        return [item for item in map(_clean, value) if item is not _ABSENT]
    return value


def _clean_members(value: dict[str, Any]) -> dict[str, Any]:
    cleaned: dict[str, Any] = {}
    for name, member in value.items():
        if member is None or (name[:1] == "$" and _is_directive(name)):
            continue
        item = _clean(member) if type(member) in _CONTAINERS else member
        if item is not _ABSENT:
            cleaned[name] = item
    return cleaned


def _is_directive(name: str) -> bool:
    return name[:1] == "$" and (
        name in {DIRECTIVE, RETAIN_KEYS} or name.startswith((DELETE_LIST, SET_ORDER))
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _malformed(path: str, message: str) -> ParseError:
    return ParseError(f"strategic merge patch: {path or 'at the root'}: {message}")


def _format(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
