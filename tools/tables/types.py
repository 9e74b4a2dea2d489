"""The table of types: OpenAPI v3 says what a field is, Go's own structs say how it is printed.

Both are read from the same version: OpenAPI from the running server, structs by a Go program that
is run inside the module the server was built from. The two must name the same fields; a
difference stops the generator.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tools.realkube import RealKubeError
from tools.realkube.binaries import cache_folder
from tools.realkube.toolchain import environment, find
from zonewise.embedded.machinery.schema.definitions import SCALARS, Definition, FieldRow, go_name
from zonewise.embedded.machinery.schema.schema import Shape

KUBERNETES = Path(__file__).parents[1] / "realkube" / "kubernetes"
PROGRAM = Path(__file__).with_name("structs.go")
WIRE_PROGRAM = Path(__file__).with_name("wire.go")
REF = "#/components/schemas/"
EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
# Definitions whose Go types read and write their own JSON.
OWN: dict[str, tuple[Shape, str]] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ("string", "quantity"),
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": ("string", "micro-time"),
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": ("string", "date-time"),
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ("int-or-string", ""),
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": ("any", ""),
    "io.k8s.apimachinery.pkg.apis.meta.v1.Patch": ("any", ""),
    "io.k8s.apimachinery.pkg.runtime.RawExtension": ("any", ""),
    EXTENSIONS + "JSON": ("any", ""),
    EXTENSIONS + "JSONSchemaPropsOrArray": ("any", "schema-or-array"),
    EXTENSIONS + "JSONSchemaPropsOrBool": ("any", "schema-or-bool"),
    EXTENSIONS + "JSONSchemaPropsOrStringArray": ("any", "schema-or-strings"),
}
# Printed by hand, not by a kind of the scheme.
UNPRINTED = {"io.k8s.apimachinery.pkg.version.Info"}


class Field(msgspec.Struct):
    """One field as structs.go prints it."""

    name: str
    go: str
    kind: str
    pointer: bool = False
    omitempty: bool = False
    omitzero: bool = False
    own: bool = False
    inline: str = ""


class GoStruct(msgspec.Struct):
    """One definition as structs.go prints it."""

    go: str
    fields: list[Field]


def go_structs() -> dict[str, GoStruct]:
    """Run structs.go in the module of the API server."""
    return msgspec.json.decode(_run(PROGRAM), type=dict[str, GoStruct])


def wire_numbers(types: Mapping[str, Definition]) -> dict[str, dict[str, Any]]:
    """The numbers of fields in protobuf, of the definitions that are served."""
    numbered = msgspec.json.decode(_run(WIRE_PROGRAM), type=dict[str, dict[str, Any]])
    return {name: numbers for name, numbers in numbered.items() if name in types}


def _run(program: Path) -> bytes:
    go = find(cache_folder(), print)
    answer = subprocess.run(
        [go, "run", "-mod=readonly", program],
        cwd=KUBERNETES,
        env=environment(go),
        capture_output=True,
        check=False,
    )
    if answer.returncode:
        raise RealKubeError(f"{program.name} failed: {answer.stderr.decode()[-2000:]}")
    return answer.stdout


def definitions(
    documents: Mapping[str, Mapping[str, Any]], structs: Mapping[str, GoStruct]
) -> dict[str, Definition]:
    """All definitions of all OpenAPI documents, sorted."""
    schemas: dict[str, dict[str, Any]] = {}
    for document in documents.values():
        for name, schema in document.get("components", {}).get("schemas", {}).items():
            known = schemas.setdefault(name, schema)
            if _facts(known) != _facts(schema):
                raise ValueError(f"two documents disagree on {name}")
    return {name: _definition(name, schemas[name], structs) for name in sorted(schemas)}


def _facts(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in schema.items() if k != "x-kubernetes-group-version-kind"}


def _definition(
    name: str, schema: Mapping[str, Any], structs: Mapping[str, GoStruct]
) -> Definition:
    if name in OWN:
        shape, form = OWN[name]
        return Definition(shape=shape, format=form)
    properties = schema.get("properties", {})
    if name in UNPRINTED:
        printed = {field: Field(name=field, go="", kind="") for field in properties}
    else:
        printed = {field.name: field for field in structs[name].fields}
    if printed.keys() != properties.keys():
        raise ValueError(f"{name}: OpenAPI and Go differ in {printed.keys() ^ properties.keys()}")
    gvk = schema.get("x-kubernetes-group-version-kind", ())
    return Definition(
        fields={field: _row(properties[field], printed[field]) for field in sorted(properties)},
        required=tuple(sorted(schema.get("required", ()))),
        atomic=schema.get("x-kubernetes-map-type") == "atomic",
        gvk=tuple((e["group"], e["version"], e["kind"]) for e in gvk) if len(gvk) == 1 else (),
    )


def _row(schema: Mapping[str, Any], field: Field) -> FieldRow:
    of, enum = _expression(schema)
    go = field.go.replace("interface {}", "any")
    strategies = set(filter(None, schema.get("x-kubernetes-patch-strategy", "").split(",")))
    unknown = strategies - {"merge", "replace", "retainKeys"}
    if unknown:
        raise ValueError(f"patch strategies {unknown} are new")
    map_type = schema.get("x-kubernetes-map-type")
    list_type = schema.get("x-kubernetes-list-type", "atomic")
    return FieldRow(
        of=of,
        enum=enum,
        list=list_type if of.startswith("[]") else "atomic",
        keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        merge=schema.get("x-kubernetes-patch-merge-key", "*") if "merge" in strategies else "",
        retain="retainKeys" in strategies,
        replace="replace" in strategies,
        atomic=None if map_type is None else map_type == "atomic",
        pointer=field.pointer,
        always=not field.omitempty and not field.omitzero,
        zero=field.omitzero,
        go="" if go == go_name(of) else go,
        inline="" if field.inline == "TypeMeta" else field.inline,
    )


def _expression(schema: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """A schema in the notation of the table, and the enum of its innermost scalar."""
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    if reference:
        return str(reference).removeprefix(REF), ()
    kind, form, enum = schema.get("type"), schema.get("format"), tuple(schema.get("enum", ()))
    if kind == "array":
        of, inner = _expression(schema["items"])
        return "[]" + of, inner
    if kind == "object":
        of, inner = _expression(schema.get("additionalProperties", {"type": "any"}))
        return "{}" + of, inner
    word = form if kind in ("integer", "number") or form == "byte" else kind
    if word not in SCALARS:
        raise ValueError(f"no notation for {json.dumps(schema)[:200]}")
    return word, enum
