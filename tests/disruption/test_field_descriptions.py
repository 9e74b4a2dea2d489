"""Every field of our own kinds is described for ``kubectl explain``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from zonewise.controllers.locators.definition import definition
from zonewise.disruption.definitions.descriptions import DESCRIPTIONS
from zonewise.disruption.definitions.schemas import resource_definitions

Obj = dict[str, Any]

SCHEMAS: dict[str, Obj] = {
    definition_of_kind["spec"]["names"]["kind"]: version["schema"]["openAPIV3Schema"]
    for definition_of_kind in [*resource_definitions(), definition()]
    for version in definition_of_kind["spec"]["versions"]
}


def fields(schema: Obj, path: str = "") -> Iterator[tuple[str, str]]:
    """The paths of all fields below a schema, and their descriptions."""
    for name, value in (schema.get("properties") or {}).items():
        below = f"{path}.{name}".removeprefix(".")
        yield below, value.get("description", "")
        yield from fields(value, below)
    if isinstance(schema.get("items"), dict):
        yield from fields(schema["items"], f"{path}[]")


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_has_a_sentence(kind: str) -> None:
    """Fields inside of lists, too; each description ends as a sentence does."""
    sentences = dict(fields(SCHEMAS[kind]))
    assert sentences
    assert [path for path, text in sentences.items() if not text.endswith(".")] == []


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_no_description_is_of_a_field_that_does_not_exist(kind: str) -> None:
    """Every description belongs to an existing field."""
    assert DESCRIPTIONS[kind].keys() <= dict(fields(SCHEMAS[kind])).keys()
