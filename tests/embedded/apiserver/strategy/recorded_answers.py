"""The recorded answers of a real API server to the cases.

A refusal is stored as it is; of an accepted object only a digest, since the objects would be a
megabyte. ``tests/kubernetes/test_rules_workloads.py`` proves the file current and shows differences
in full; ``record`` writes it again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.embedded.apiserver.strategy import cases_pods, cases_workloads
from tests.embedded.apiserver.strategy.cases import Ask, Case, answer

FILE = Path(__file__).parent / "data" / "workloads.json"
CASES: list[Case] = [
    *cases_pods.CREATES,
    *cases_pods.CHANGES,
    *cases_workloads.CREATES,
    *cases_workloads.CHANGES,
]


def short(response: dict[str, Any]) -> str:
    """An answer in one line."""
    if "setup" in response:
        return f"setup {short(response['setup'])}"
    if "object" in response:
        text = json.dumps(response["object"], sort_keys=True)
        return f"{response['code']} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return " | ".join([f"{response['code']} {response['reason']}", *response["causes"]])


def load() -> dict[str, str]:
    """The recorded answers by label."""
    recorded: dict[str, str] = json.loads(FILE.read_text())
    return recorded


async def record(ask: Ask, namespace: str) -> None:
    """Record the answers of a real server."""
    answers = {case.label: short(await answer(ask, case, namespace)) for case in CASES}
    FILE.write_text(json.dumps(answers, indent=0, sort_keys=True, ensure_ascii=False) + "\n")
