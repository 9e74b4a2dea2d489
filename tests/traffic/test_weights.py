"""Weights: as near to the limit as whole numbers allow, stable, and ignored if invalid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.traffic.clusters import LIMITS, counts, shares, weighted_flow
from tests.traffic.recorded_clusters import cluster, state
from tests.vectors.recorded import lines

from zonewise.traffic.endpoint import TrafficEndpoint
from zonewise.traffic.limits import OverloadLimits
from zonewise.traffic.routes.flow import compute_flow
from zonewise.traffic.weights import (
    MAX_TEXT_LENGTH,
    MAX_WEIGHT,
    SLACK_PERCENT,
    compute_weights,
    decide_weights,
    format_weights,
    in_zone_limit_of,
    parse_weights,
    weights_suffice,
)

ADD, DROP = Fraction(20, 100), Fraction(30, 100)


def test_every_zone_stays_at_home() -> None:
    """If every zone has endpoints for its share, no row is needed."""
    assert decide_weights(counts(2, 2, 2), shares(1, 1, 1), LIMITS, "") == "{}"


def test_a_zone_without_endpoints_has_guests_only() -> None:
    """A zone without endpoints sends to zones with capacity; the others need no row."""
    rows = parse_weights(decide_weights(counts(2, 2, 0), shares(1, 1, 1), LIMITS, ""))
    assert rows == {"c": {"a": 1000, "b": 1000}}


def test_recorded_clusters() -> None:
    """Of what can stay in zone within the limit weights keep 0.9999 on average, and 0.999 in each
    cluster.
    """
    parts: list[Fraction] = []
    for row in lines("hints.jsonl.gz"):
        view = cluster(row)
        own = Counter(target.zone for target in view.endpoints)
        text = decide_weights(own, view.shares, LIMITS, "")
        assert len(text) < 300
        flow = weighted_flow(parse_weights(text) or {}, own, view.shares)
        assert flow is not None
        assert flow.overload < ADD
        parts.append(flow.in_zone / in_zone_limit_of(own, view.shares, LIMITS))
    assert len(parts) == 600
    assert sum(parts) / len(parts) >= Fraction(9999, 10000)
    assert min(parts) >= Fraction(999, 1000)


def test_recorded_lives() -> None:
    """Over 1,640 states a text is written in fewer than one of four, and limits hold."""
    texts = steps = 0
    stays = limit = Fraction(0)
    for life in lines("churn.jsonl.gz"):
        before = ""
        for step in life["steps"]:
            view = state(step)
            steps += 1
            own = Counter(target.zone for target in view.endpoints if target.ready)
            if view.shares.reason is not None or not own or "" in own:
                texts += bool(before)
                before = ""
                continue
            text = decide_weights(own, view.shares, LIMITS, before)
            texts += text != before
            before = text
            flow = weighted_flow(parse_weights(text) or {}, own, view.shares)
            assert flow is not None
            assert flow.overload <= DROP
            stays += flow.in_zone
            limit += in_zone_limit_of(own, view.shares, LIMITS)
    assert steps == 1640
    assert stays >= Fraction(998, 1000) * limit
    assert texts <= 0.25 * steps


CLUSTERS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 100)), min_size=2, max_size=8
).filter(lambda zones: any(count for count, _ in zones))


@given(CLUSTERS, st.integers(0, 5))
def test_any_cluster(zones: list[tuple[int, int]], elsewhere: int) -> None:
    """Loads are below the limit, deciding again gives the same text, and order does not matter."""
    own = counts(*(count for count, _ in zones)) | {"nowhere": elsewhere}
    known = shares(*(cpu for _, cpu in zones))
    rows = compute_weights(own, known, LIMITS)
    flow = weighted_flow(rows, own, known)
    assert flow is not None
    assert flow.overload < ADD
    text = decide_weights(own, known, LIMITS, "")
    assert decide_weights(own, known, LIMITS, text) == text
    backwards: Mapping[str, int] = dict(reversed(own.items()))
    assert decide_weights(backwards, known, LIMITS, "") == text
    assert all(0 < weight <= MAX_WEIGHT for row in rows.values() for weight in row.values())


@given(CLUSTERS, st.data())
def test_judging_in_whole_numbers_agrees_with_the_definition(
    zones: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A text made for other shares is kept exactly while the resulting flows allow it."""
    own = counts(*(count for count, _ in zones))
    before = shares(*(data.draw(st.integers(1, 100)) for _ in zones))
    known = shares(*(cpu for _, cpu in zones))
    limits = OverloadLimits(data.draw(st.integers(1, 60)), data.draw(st.integers(60, 100)))
    rows = compute_weights(own, before, limits)
    flow = weighted_flow(rows, own, known)
    slack = Fraction(SLACK_PERCENT, 100)
    suffices = (
        flow is not None
        and flow.overload * 100 <= limits.drop
        and flow.in_zone >= in_zone_limit_of(own, known, limits) - slack
    )
    assert weights_suffice(format_weights(rows), own, known, limits) == suffices


@given(CLUSTERS)
def test_routes_do_what_weights_say(zones: list[tuple[int, int]]) -> None:
    """The flows of the routes, endpoint by endpoint, equal those counted zone by zone."""
    own, known = counts(*(count for count, _ in zones)), shares(*(cpu for _, cpu in zones))
    rows = compute_weights(own, known, LIMITS)
    targets = [TrafficEndpoint(f"{z}{i}", zone=z) for z, c in own.items() for i in range(c)]
    assert compute_flow(targets, known, rows) == weighted_flow(rows, own, known)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a":1}',
        '{"a":{"b":-1}}',
        '{"a":{"b":1000001}}',
        '{"a":{"b":1.5}}',
        '{"a b":{"b":1}}',
        '{"a":{"":1}}',
        '{"a":{"b":1}',
        "{" * 100_000,
        '{"a":{"b":1}}' + " " * MAX_TEXT_LENGTH,
        '{"\ud800":{"b":1}}',
        '{"a":{"a":1},"a":{"b":1}}',
        '{"a":{"b":1},"a":{}}',
        '{"a":{"b":1,"b":1}}',
        r'{"a":{"b":1,"\u0062":2}}',
        r'{"a":{"\"":1},"a":{"b":1}}',
    ],
)
def test_invalid_texts(text: str) -> None:
    """Anything but an object of objects of whole numbers is ignored."""
    assert parse_weights(text) is None


def test_a_text_may_be_spaced_and_escaped() -> None:
    """Spaces and escapes do not change the meaning; a zone's name is stored once."""
    text = r' { "a" : {"\u0061": 1, "b": 0}, "b" : { "a":2 } } '
    assert parse_weights(text) == {"a": {"a": 1, "b": 0}, "b": {"a": 2}}


def test_a_text_that_no_longer_fits_is_written_anew() -> None:
    """A zone that lost its endpoints cannot keep a text that sends its traffic home."""
    own, known = counts(2, 2, 0), shares(1, 1, 1)
    assert decide_weights(own, known, LIMITS, "{}") != "{}"
