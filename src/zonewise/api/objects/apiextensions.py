"""CustomResourceDefinitions, as far as they are written here: as a whole, from plain values.

Nothing reads their fields through a type; the API server compiles them from what was stored.
"""

from __future__ import annotations

from typing import ClassVar

from zonewise.api.meta import Object
from zonewise.api.resource import Resource


class CustomResourceDefinition(Object):
    """A kind that is added to a cluster."""

    resource: ClassVar = Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
    )
