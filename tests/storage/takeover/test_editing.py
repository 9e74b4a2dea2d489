"""The takeover map is changed inside of a text, and the rest of the text is not."""

from __future__ import annotations

import json

import pytest

from zonewise.api.errors import ConfigError
from zonewise.storage.configuration import edit_takeover
from zonewise.storage.domains import DomainLabels

LABELS = DomainLabels("csi.zonewise.io")
POOL = {
    "poolName": "p",
    "capacity": "1Gi",
    "health": 0.5,
    "domainSegments": [{"domainLabel": "zone", "value": "a"}],
}
TEXT = json.dumps({"version": 2, "pools": [POOL], "topology-takeover": {"c": ["all"]}})


def test_an_entry_comes_and_goes() -> None:
    """When an entry is added or removed the rest of the text keeps its meaning; without entries the
    map is removed.
    """
    taken = edit_takeover(TEXT, {"a": ("b", "c/x")}, LABELS)
    assert json.loads(taken) == {
        "version": 2,
        "pools": [POOL],
        "topology-takeover": {"c": ["all"], "a": ["b", "c/x"]},
    }
    given = edit_takeover(taken, {"a": None, "c": None, "never": None}, LABELS)
    assert json.loads(given) == {"version": 2, "pools": [POOL]}


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        (TEXT, {"a": ("a",)}, "cannot take over itself"),
        (TEXT, {"a": ("c",), "c": ("a",)}, "take over each other"),
        (TEXT, {"a": ("b", "all")}, "cannot be combined"),
        (TEXT, {"a": ("b", "b")}, "twice"),
        (TEXT, {"all": ("b",)}, "cannot be taken over"),
        (TEXT, {"a b": ("b",)}, "not a domain"),
        ("{", {"a": ("b",)}, "correct it first"),
        ("[]", {"a": ("b",)}, "version 1"),
    ],
)
def test_invalid_changes_are_refused(
    text: str, changes: dict[str, tuple[str, ...]], words: str
) -> None:
    """The error is one sentence, and nothing is written."""
    with pytest.raises(ConfigError, match=words):
        edit_takeover(text, changes, LABELS)
