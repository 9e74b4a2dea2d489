"""Strategic merge patch: a merge patch with a schema of which lists are merged, and by which key.

The schema is an argument (``PatchSchema``): for a field, whether its list is merged and by which
member its items are identified. A list the schema does not call merged is replaced as a whole, an
object is merged unless the schema says otherwise. ``embedded.machinery.schema.types.Type`` is such
a schema.

Directives in a patch

* ``$patch: replace`` in an object takes the patch's object as it is; ``delete`` leaves an empty
  one; ``merge`` is the default spelled out (API servers refuse it). In an item of a merged list,
  ``delete`` removes the items with the same key, ``replace`` makes the other items of the patch
  the whole list.
* ``$retainKeys: [a, b]`` removes all other members; the patch may only set those.
* ``$deleteFromPrimitiveList/field: [x]`` removes plain values from a list.
* ``$setElementOrder/field: [...]`` says in which order the items are to be.

Order of a merged list: items of the patch are in the order of the patch (or of
``$setElementOrder``), items only the document has in the document's, and the two are interleaved by
their places in the document. A new item has no place there, so it comes first.

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
    original: dict[str, Any], patch: dict[str, Any], schema: PatchSchema | None, at: str
) -> dict[str, Any]:
    directive = patch.get(DIRECTIVE, "merge")
    if directive == "replace":
        return _members(patch)
    if directive == "delete":
        return {}
    if directive != "merge":
        raise _malformed(at, f"$patch is none of replace, delete and merge: {_shown(directive)}")
    result = _retained(original, patch, at)
    ordered = _ordered_fields(result, patch, schema, at)
    for name, value in patch.items():
        if name.startswith(DELETE_LIST):
            _delete_values(result, name.removeprefix(DELETE_LIST), value, at)
    for name, value in patch.items():
        if name not in ordered and not _is_directive(name):
            _merge_member(result, name, value, schema, at)
    return result


def _merge_member(
    result: dict[str, Any], name: str, value: Any, schema: PatchSchema | None, at: str
) -> None:
    current = result.get(name)
    known = schema.child(name) if schema is not None else None
    if value is None:
        result.pop(name, None)
    elif isinstance(current, dict) and isinstance(value, dict):
        if known is not None and known.replace:
            result[name] = _members(value)
        else:
            result[name] = _merge_object(current, value, known, _join(at, name))
    elif isinstance(current, list) and isinstance(value, list):
        if known is not None and known.merge:
            result[name] = _merge_list(current, value, known, _join(at, name))
        else:
            result[name] = _clean(value)
    else:
        added = _clean(value)
        if added is _ABSENT:
            result.pop(name, None)
        else:
            result[name] = added


def _retained(original: dict[str, Any], patch: dict[str, Any], at: str) -> dict[str, Any]:
    if RETAIN_KEYS not in patch:
        return dict(original)
    keys = patch[RETAIN_KEYS]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise _malformed(at, f"{RETAIN_KEYS} is not a list of names")
    retained = frozenset(keys)
    for name, value in patch.items():
        if value is not None and not _is_directive(name) and name not in retained:
            raise _malformed(at, f"{RETAIN_KEYS} does not name {name!r}, which the patch sets")
    return {name: value for name, value in original.items() if name in retained}


def _delete_values(result: dict[str, Any], name: str, values: Any, at: str) -> None:
    if not name or not isinstance(values, list):
        raise _malformed(at, f"{DELETE_LIST}{name} is not a list of values of a named field")
    current = result.get(name)
    if not isinstance(current, list):
        return
    where = _join(at, name)
    gone = {_key_of(value, "", where) for value in values}
    result[name] = [item for item in current if _key_of(item, "", where) not in gone]


def _ordered_fields(
    result: dict[str, Any], patch: dict[str, Any], schema: PatchSchema | None, at: str
) -> set[str]:
    """Merges the fields whose order the patch sets; returns their names."""
    done: set[str] = set()
    for directive, order in patch.items():
        if not directive.startswith(SET_ORDER):
            continue
        name = directive.removeprefix(SET_ORDER)
        current, value = result.get(name), patch.get(name)
        if not name or not isinstance(order, list):
            raise _malformed(at, f"{directive} is not a list for a named field")
        if not all(part is None or isinstance(part, list) for part in (current, value)):
            raise PatchFailed(f"strategic merge patch: {_join(at, name)} is not a list")
        known = schema.child(name) if schema is not None else None
        if known is None or not known.merge or (current is None and name not in patch):
            continue
        where, key = _join(at, name), known.merge_key
        wanted = [_key_of(item, key, where) for item in order]
        _check_order(value or [], wanted, key, where)
        _merge_member(result, name, value if name in patch else [], schema, at)
        if name in result:
            places = [_key_of(item, key, where) for item in current or []]
            result[name] = _arranged(result[name], wanted, places, key, where)
        done.add(name)
    return done


def _check_order(items: Sequence[Any], wanted: Sequence[_JsonKey], merge_key: str, at: str) -> None:
    """The patch's items must be in the order the patch itself sets."""
    if not wanted:
        return
    rest = iter(wanted)
    for item in items:
        if not (isinstance(item, dict) and DIRECTIVE in item):
            key = _key_of(item, merge_key, at)
            if key not in rest:
                raise _malformed(at, f"item {_shown(key[1])} is not where {SET_ORDER} puts it")


def _merge_list(original: list[Any], patch: list[Any], known: PatchSchema, at: str) -> list[Any]:
    merge_key = known.merge_key
    if merge_key:
        original, patch, replaced = _item_directives(original, patch, merge_key, at)
        if replaced:
            return patch
    merged: list[Any] = []
    places: dict[_JsonKey, int] = {}
    for item in original:
        key = _key_of(item, merge_key, at)
        if merge_key or key not in places:
            places.setdefault(key, len(merged))
            merged.append(item)
    order = list(places)
    wanted: list[_JsonKey] = []
    for item in patch:
        key = _key_of(item, merge_key, at)
        wanted.append(key)
        place = places.get(key)
        if place is None:
            places[key] = len(merged)
            merged.append(_members(item) if merge_key else item)
        elif merge_key:
            where = f"{at}[{merge_key}={key[1]}]"
            merged[place] = _merge_object(merged[place], item, known.items, where)
    return _arranged(merged, wanted, order, merge_key, at)


def _item_directives(
    original: list[Any], patch: list[Any], merge_key: str, at: str
) -> tuple[list[Any], list[Any], bool]:
    """Both lists without the items that are directives, and whether the patch's is the whole."""
    plain: list[Any] = []
    gone: set[_JsonKey] = set()
    replaced = False
    for item in patch:
        directive = item.get(DIRECTIVE, "merge") if isinstance(item, dict) else "merge"
        match directive:
            case "merge":
                plain.append(item)
            case "delete":
                gone.add(_key_of(item, merge_key, at))
            case "replace":
                replaced = True
            case _:
                raise _malformed(
                    at, f"$patch is none of replace, delete and merge: {_shown(directive)}"
                )
    if replaced:
        return [], [_members(item) for item in plain], True
    if gone:
        original = [item for item in original if _key_of(item, merge_key, at) not in gone]
    return original, plain, False


def _arranged(
    merged: list[Any],
    wanted: Sequence[_JsonKey],
    order: Sequence[_JsonKey],
    merge_key: str,
    at: str,
) -> list[Any]:
    """Wanted items in the wanted order, mixed with the others by their places in ``order``."""
    rank: dict[_JsonKey, int] = {}
    for number, key in enumerate(wanted):
        rank.setdefault(key, number)
    place: dict[_JsonKey, int] = {}
    for number, key in enumerate(order):
        place.setdefault(key, number)
    keyed = [(_key_of(item, merge_key, at), item) for item in merged]
    ours = sorted((pair for pair in keyed if pair[0] in rank), key=lambda pair: rank[pair[0]])
    others = sorted(
        (pair for pair in keyed if pair[0] not in rank), key=lambda pair: place.get(pair[0], -1)
    )
    result: list[Any] = []
    waiting = iter(others)
    other = next(waiting, None)
    for key, item in ours:
        here = place.get(key)
        while here is not None and other is not None and place.get(other[0], here) < here:
            result.append(other[1])
            other = next(waiting, None)
        result.append(item)
    if other is not None:
        result.append(other[1])
        result.extend(pair[1] for pair in waiting)
    return result


def _key_of(item: Any, merge_key: str, at: str) -> _JsonKey:
    """What identifies an item, so that true is not 1."""
    value = item
    if merge_key:
        if not isinstance(item, dict) or merge_key not in item:
            raise PatchFailed(
                f"strategic merge patch: {at} has an item without its key {merge_key!r}"
            )
        value = item[merge_key]
    if isinstance(value, dict | list):
        raise PatchFailed(f"strategic merge patch: {at} has an item that is not a plain value")
    return isinstance(value, bool), value


def _clean(value: Any) -> Any:
    """A value a patch adds, without nulls and directives; absent if it is itself a directive."""
    if isinstance(value, dict):
        return _ABSENT if DIRECTIVE in value else _members(value)
    if isinstance(value, list):
        return [item for item in map(_clean, value) if item is not _ABSENT]
    return value


def _members(value: dict[str, Any]) -> dict[str, Any]:
    cleaned = (
        (name, _clean(member))
        for name, member in value.items()
        if member is not None and not _is_directive(name)
    )
    return {name: member for name, member in cleaned if member is not _ABSENT}


def _is_directive(name: str) -> bool:
    return name[:1] == "$" and (
        name in {DIRECTIVE, RETAIN_KEYS} or name.startswith((DELETE_LIST, SET_ORDER))
    )


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _malformed(at: str, message: str) -> ParseError:
    return ParseError(f"strategic merge patch: {at or 'at the top'}: {message}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
