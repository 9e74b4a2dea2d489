"""How the API names a kind, and the paths of its objects.

A ``Resource`` is all that a client needs of a kind: group, version, kind, plural and whether it is
namespaced. Names come from users and from the cluster, so a path is never built from a segment that
could change its meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from zonewise.api.errors import ParseError

_PLAIN = re.compile(r"[a-z0-9][-a-z0-9.]*").fullmatch
"""Nearly every name: nothing in it needs to be quoted."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of one version, and the path where the API serves it; group "" is the core group."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """What goes in an object's ``apiVersion``: ``v1``, ``apps/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """How the API names it in errors and CRD names: ``pods``, ``deployments.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def root(self) -> str:
        """The path of the group and version: ``/api/v1``, ``/apis/apps/v1``."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The path of the collection, of one object, or of its subresource.

        Without a namespace a namespaced kind gives the collection over all namespaces. For a kind
        without namespaces the namespace is ignored, so that callers may pass any ``key``.
        """
        parts = [self.root]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace, "namespace")]
        elif self.namespaced and name is not None:
            raise ParseError(f"{self.kind} {name!r} is namespaced: a namespace is required")
        parts.append(self.plural)
        if name is not None:
            parts.append(_segment(name, "name"))
        if subresource is not None:
            if name is None:
                raise ParseError(f"subresource {subresource!r} of {self.plural} needs a name")
            parts.append(_segment(subresource, "subresource"))
        return "/".join(parts)


def _segment(text: str, label: str) -> str:
    if _PLAIN(text):
        return text
    if text in {"", ".", ".."} or "/" in text or "%" in text:
        raise ParseError(
            f"{label} {text!r} cannot be in a path: it is empty, '.', '..' or has '/' or '%'"
        )
    return quote(text, safe=":@!$&'()*+,;=")
