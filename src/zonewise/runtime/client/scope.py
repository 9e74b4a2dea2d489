"""Which objects a list, a watch or a reflector is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from zonewise.api.meta import Object
from zonewise.api.unstructured import Unstructured

T = TypeVar("T", bound=Object | Unstructured)

_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"

PAGE = 500
"""Objects per page of a list; what the API server's own clients request."""


@dataclass(frozen=True, slots=True)
class Scope(Generic[T]):
    """The objects of one kind, of one namespace or all (None), that match the selectors."""

    cls: type[T]
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        """Where the collection is."""
        return self.cls.resource.path(self.namespace)

    def headers(self, *, stream: bool) -> dict[str, str]:
        """The headers that select the form of a collection's answer."""
        if not self.cls.metadata_only:
            return {}
        return {"Accept": _METADATA.format("" if stream else "List")}

    def query(self, **more: str) -> dict[str, str]:
        """The parameters of a request for the collection."""
        query = dict(more)
        if self.label_selector:
            query["labelSelector"] = self.label_selector
        if self.field_selector:
            query["fieldSelector"] = self.field_selector
        return query

    def __str__(self) -> str:
        parts = [self.cls.resource.qualified]
        if self.namespace:
            parts.append(f"in {self.namespace}")
        if self.label_selector:
            parts.append(f"with {self.label_selector}")
        if self.field_selector:
            parts.append(f"where {self.field_selector}")
        return " ".join(parts)
