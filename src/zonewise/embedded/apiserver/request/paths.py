"""Request paths: of a collection, an object, a subresource, or of something else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import unquote

from zonewise.embedded.apiserver.request import status_errors


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed resource path. ``namespace`` and ``name`` are empty if the path has none."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    subpath: str = ""  # what follows pods/x/proxy/
    watch: bool = False  # the older path of a watch: /api/v1/watch/pods


def parse_path(path: str) -> Target | None:
    """The target of a path, or None if it is not of a resource (``/apis``, ``/healthz``).

    Segments are decoded after splitting, so an encoded slash never becomes a separator, and ``.``
    and ``..`` are refused.
    """
    parts = path.split("/")
    if len(parts) < 4 or parts[0] != "":
        return None
    if parts[1] == "api":
        group, version, segments = "", parts[2], parts[3:]
    elif parts[1] == "apis" and len(parts) >= 5:
        group, version, segments = parts[2], parts[3], parts[4:]
    else:
        return None
    if segments and segments[-1] == "":
        segments = segments[:-1]
    if "%" in path:
        try:
            segments = [unquote(part, errors="strict") for part in segments]
        except UnicodeDecodeError:
            raise status_errors.no_such_resource() from None
    if not segments:
        return None
    if any(part in {"", ".", ".."} or "\x00" in part for part in segments[:4]):
        raise status_errors.no_such_resource()
    if segments[0] == "watch":
        if len(segments) == 1:
            raise status_errors.no_such_resource()
        return replace(_parse_namespaced(group, version, segments[1:]), watch=True)
    return _parse_namespaced(group, version, segments)


def _parse_namespaced(group: str, version: str, segments: list[str]) -> Target:
    if (
        segments[0] == "namespaces"
        and len(segments) > 2
        and segments[2] not in {"status", "finalize"}
    ):
        return _build_target(group, version, segments[1], segments[2:])
    return _build_target(group, version, "", segments)


def _build_target(group: str, version: str, namespace: str, segments: list[str]) -> Target:
    plural, name, subresource = [*segments[:3], "", ""][:3]
    return Target(group, version, plural, namespace, name, subresource, "/".join(segments[3:]))
