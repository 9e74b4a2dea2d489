"""The table of stories in the docs is the one that both clusters play."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from tests.disruption.story_table import STORIES, TABLE, Kind, Story, in_markdown

PAGE = Path(__file__).parents[2] / "docs" / "disruption.md"


def test_the_docs_have_the_table_that_is_played() -> None:
    """``docs/disruption.md`` has the table as the tests read it; if not, copy what is printed."""
    assert in_markdown() in PAGE.read_text(), in_markdown()


def test_every_kind_has_every_story() -> None:
    """Each kind says what is done in each story, and why it is not a rolling update."""
    assert set(TABLE) == set(get_args(Kind))
    assert set(STORIES) == set(get_args(Story))
    for row in TABLE.values():
        assert set(row) == set(STORIES)
        assert all(cell.why for cell in row.values() if cell.deed not in ("update", "scale"))
