"""What a path names: a collection, an object, one of its subresources, or something that is no
resource.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import unquote

from zonewise.embedded.apiserver.request import status_errors


@dataclass(frozen=True, slots=True)
class Target:
    """A resource path taken apart. ``namespace`` and ``name`` are empty where the path has none."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    rest: str = ""  # what follows pods/x/proxy/
    watch: bool = False  # the older path of a watch: /api/v1/watch/pods


def parse(path: str) -> Target | None:
    """The resource a path names, or None where it names none (``/apis``, ``/healthz``,
    ``/api/v1``).

    Segments are decoded after splitting, so an encoded slash never becomes a separator, and ``.``
    and ``..`` never climb.
    """
    parts = path.split("/")
    if len(parts) < 4 or parts[0] != "":
        return None
    if parts[1] == "api":
        group, version, rest = "", parts[2], parts[3:]
    elif parts[1] == "apis" and len(parts) >= 5:
        group, version, rest = parts[2], parts[3], parts[4:]
    else:
        return None
    if rest and rest[-1] == "":
        rest = rest[:-1]
    if "%" in path:
        try:
            rest = [unquote(part, errors="strict") for part in rest]
        except UnicodeDecodeError:
            raise status_errors.no_such_resource() from None
    if not rest:
        return None
    if any(part in {"", ".", ".."} or "\x00" in part for part in rest[:4]):
        raise status_errors.no_such_resource()
    if rest[0] == "watch":
        if len(rest) == 1:
            raise status_errors.no_such_resource()
        return replace(_placed(group, version, rest[1:]), watch=True)
    return _placed(group, version, rest)


def _placed(group: str, version: str, rest: list[str]) -> Target:
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in {"status", "finalize"}:
        return _below(group, version, rest[1], rest[2:])
    return _below(group, version, "", rest)


def _below(group: str, version: str, namespace: str, rest: list[str]) -> Target:
    plural, name, subresource = [*rest[:3], "", ""][:3]
    return Target(group, version, plural, namespace, name, subresource, "/".join(rest[3:]))
