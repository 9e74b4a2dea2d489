"""The real server's verdicts on schemas, rules and values of custom resources.

``embedded/machinery/crd/judged/*.json`` hold cases and its verdicts: a schema, a value of it, and
the causes for which the definition or else the object was refused, each as reason and path below
the case. Tests without a cluster check our code against them; ``test_judgements.py`` asks the real
server again.

``python -m tests.kubernetes.judgements FILE`` records the verdicts of one file again.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.kubernetes.real_server import Answer, RealServer

from tools import realkube

FOLDER = Path(__file__).parents[1] / "embedded" / "machinery" / "crd" / "judged"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BEFORE = "spec.validation.openAPIV3Schema.properties[spec].properties"
Verdict = dict[str, Any]


def load(name: str) -> list[dict[str, Any]]:
    """The cases of one file."""
    cases: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text())
    return cases


def schema_of(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """One schema in which every case is a property of ``spec``."""
    fields = {f"p{n}": case["schema"] for n, case in enumerate(cases)}
    spec = {"type": "object", "properties": fields}
    return {"type": "object", "properties": {"spec": spec}}


def object_of(cases: list[dict[str, Any]], group: str, refused: set[int]) -> dict[str, Any]:
    """An object with the values of all cases whose schema was not refused."""
    spec = {
        f"p{n}": case["value"]
        for n, case in enumerate(cases)
        if n not in refused and "value" in case
    }
    head = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "thing"}}
    return {**head, "spec": spec}


def definition_of(schema: dict[str, Any], group: str) -> dict[str, Any]:
    """A cluster-wide kind with this schema."""
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": "Thing", "plural": "things"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {"group": group, "names": names, "scope": "Cluster", "versions": [version]},
    }


def sorted_by_case(causes: list[tuple[str, str]], prefix: str, count: int) -> list[list[list[str]]]:
    """Causes by case, each path without the common prefix; causes outside all cases are dropped."""
    by_case: list[set[tuple[str, str]]] = [set() for _ in range(count)]
    form = re.compile(re.escape(prefix) + r"(?:\[p(\d+)\]|\.p(\d+))(.*)", re.DOTALL)
    for reason, path in causes:
        match = form.fullmatch(path)
        if match is not None:
            by_case[int(match[1] or match[2])].add((reason, match[3]))
    return [[list(cause) for cause in sorted(case)] for case in by_case]


async def verdicts(server: RealServer, cases: list[dict[str, Any]], group: str) -> list[Verdict]:
    """The real server's verdict on every case."""
    if not any("value" in case for case in cases):
        return [await of_schema(server, case, group) for case in cases]
    schema = schema_of(cases)
    answer = await server.ask("POST", DEFINITIONS, definition_of(schema, group))
    definitions = sorted_by_case(answer.causes, BEFORE, len(cases))
    refused = {n for n, causes in enumerate(definitions) if causes}
    if answer.status >= 400:
        for n in refused:
            del schema["properties"]["spec"]["properties"][f"p{n}"]
        answer = await server.ask("POST", DEFINITIONS, definition_of(schema, group))
    assert answer.status == 201, answer.body
    try:
        answer = await created(server, object_of(cases, group, refused), group)
        objects = sorted_by_case(answer.causes, "spec", len(cases))
    finally:
        await server.ask("DELETE", f"{DEFINITIONS}/things.{group}")
    return [
        {"definition": ours} if ours else {"object": objects[n]}
        for n, ours in enumerate(definitions)
    ]


async def of_schema(server: RealServer, case: dict[str, Any], group: str) -> Verdict:
    """The verdict on a schema alone: a fault may hide others, so each schema is sent by itself."""
    definition = definition_of(schema_of([case]), group)
    answer = await server.ask("POST", DEFINITIONS, definition, dryRun="All")
    return {"definition": sorted_by_case(answer.causes, BEFORE, 1)[0]}


async def created(server: RealServer, value: dict[str, Any], group: str) -> Answer:
    """The answer to creating an object, once its kind is served."""
    while True:
        answer = await server.ask("POST", f"/apis/{group}/v1/things", value)
        if answer.status != 404:
            return answer
        await asyncio.sleep(0.05)


async def record(name: str) -> None:
    """Write the real server's current verdicts."""
    settings = realkube.Settings(controllers=(), scheduler=False, fsync=False)
    with realkube.start(settings) as plane:
        server = RealServer(plane)
        cases = [{k: v for k, v in case.items() if k in ("schema", "value")} for case in load(name)]
        try:
            judged = await verdicts(server, cases, f"{name}.example.com")
        finally:
            await server.close()
    lines = [json.dumps({**c, **v}, ensure_ascii=False) for c, v in zip(cases, judged, strict=True)]
    (FOLDER / f"{name}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    for file in sys.argv[1:]:
        asyncio.run(record(file))
