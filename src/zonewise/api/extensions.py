"""CustomResourceDefinitions: kinds that are added to a cluster.

Schemas stay plain values (``Any``): they describe themselves recursively and only the embedded API
server compiles them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from zonewise.api.meta import Condition, Object
from zonewise.api.resource import Resource
from zonewise.api.struct import Struct, field


class CustomResourceDefinitionNames(Struct):
    """What a kind is called."""

    plural: str = ""
    singular: str = ""
    short_names: tuple[str, ...] = ()
    kind: str = ""
    list_kind: str = ""
    categories: tuple[str, ...] = ()


class CustomResourceValidation(Struct):
    """The structural schema of a version, as JSON."""

    open_api_v3_schema: dict[str, Any] | None = field(name="openAPIV3Schema", default=None)


class ScaleSubresource(Struct):
    """Where an object keeps its number of replicas."""

    spec_replicas_path: str = ""
    status_replicas_path: str = ""
    label_selector_path: str | None = None


class CustomResourceSubresources(Struct):
    """Which subresources a version has; an empty ``status`` object means yes."""

    status: dict[str, Any] | None = None
    scale: ScaleSubresource | None = None


class PrinterColumn(Struct):
    """A column of ``kubectl get``."""

    name: str = ""
    type: str = ""
    format: str = ""
    description: str = ""
    priority: int = 0
    json_path: str = field(name="jsonPath", default="")


class SelectableField(Struct):
    """A field that field selectors may name."""

    json_path: str = field(name="jsonPath", default="")


class CustomResourceDefinitionVersion(Struct):
    """One version of a kind."""

    name: str = ""
    served: bool = False
    storage: bool = False
    deprecated: bool = False
    deprecation_warning: str | None = None
    schema: CustomResourceValidation | None = None
    subresources: CustomResourceSubresources | None = None
    additional_printer_columns: tuple[PrinterColumn, ...] = ()
    selectable_fields: tuple[SelectableField, ...] = ()


class CustomResourceConversion(Struct):
    """How versions become each other; only ``None`` is known here."""

    strategy: str = ""


class CustomResourceDefinitionSpec(Struct):
    """What a kind is."""

    group: str = ""
    names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    scope: str = ""
    versions: tuple[CustomResourceDefinitionVersion, ...] | None = ()
    conversion: CustomResourceConversion | None = None
    preserve_unknown_fields: bool = False


class CustomResourceDefinitionStatus(Struct):
    """Whether a kind is served."""

    conditions: tuple[Condition, ...] | None = ()
    accepted_names: CustomResourceDefinitionNames = CustomResourceDefinitionNames()
    stored_versions: tuple[str, ...] | None = ()
    observed_generation: int = 0


class CustomResourceDefinition(Object):
    """A kind that is added to a cluster."""

    resource: ClassVar = Resource(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        namespaced=False,
    )

    spec: CustomResourceDefinitionSpec = CustomResourceDefinitionSpec()
    status: CustomResourceDefinitionStatus = CustomResourceDefinitionStatus()
