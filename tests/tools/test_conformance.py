"""The page about Kubernetes' own conformance specs."""

from __future__ import annotations

from tools.conformance.__main__ import REPORT, known, report, specs


def test_the_page_survives_a_round_trip() -> None:
    """The outcome of every spec can be read back from the page, and is written the same again."""
    page = REPORT.read_text()
    outcomes = known(page)
    assert list(outcomes) == specs()
    assert report(outcomes) == page


def test_a_new_outcome_replaces_the_old_one_and_no_other() -> None:
    """Rows of specs that were not run stay."""
    outcomes = known(REPORT.read_text())
    first, *others = (spec for spec, outcome in outcomes.items() if outcome != "absent")
    changed = known(report(outcomes | {first: "failed"}))
    assert changed[first] == "failed"
    assert all(changed[spec] == outcomes[spec] for spec in others)


def test_specs_that_were_not_run_are_marked() -> None:
    """An empty page has no outcomes, and knows which specs cannot be run."""
    assert set(known("").values()) == {"not run", "absent"}
