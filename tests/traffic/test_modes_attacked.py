"""Changing modes, crashing writers, invalid annotations, renamed zones."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.traffic.clusters import ZONES, shares
from tests.traffic.slice_server import SliceServer, pod, pods

from zonewise.api import EndpointSlice
from zonewise.api.reason import Reason
from zonewise.topology.shares import Shares, ZoneShare
from zonewise.traffic.modes import HintRequest, Mode
from zonewise.traffic.routes.choice import ClientLocation, RouteRule
from zonewise.traffic.routes.service import compute_service_routes
from zonewise.traffic.slices.rehinting import rehint
from zonewise.traffic.weights import (
    MAX_TEXT_LENGTH,
    WEIGHTS_ANNOTATION,
    parse_weights,
    weights_suffice,
)

WISHES = {mode: HintRequest(mode) for mode in (Mode.AUTO, Mode.SHARED, Mode.WEIGHTED)}
OFF = HintRequest()
BAD = (
    "{",
    "[]",
    "{}x",
    '{"a":{"a":-1}}',
    "null",
    "\u00e9",
    '{"a":{"a":1}}' + " " * MAX_TEXT_LENGTH,
)

steps = st.lists(
    st.one_of(
        st.tuples(st.just("mode"), st.sampled_from([*WISHES.values(), OFF])),
        st.tuples(st.just("cpu"), st.lists(st.integers(1, 9), min_size=2, max_size=4)),
        st.tuples(st.just("pods"), st.lists(st.integers(0, 4), min_size=4, max_size=4)),
        st.tuples(st.just("die"), st.integers(0, 3)),
        st.tuples(st.just("spoil"), st.sampled_from(BAD)),
        st.tuples(st.just("restart"), st.none()),
    ),
    min_size=1,
    max_size=8,
)


def texts(server: SliceServer) -> list[str]:
    """The weights on each slice that has a ready endpoint."""
    return [
        piece.metadata.annotations.get(WEIGHTS_ANNOTATION, "")
        for piece in server.slices.values()
        if any(endpoint.conditions.ready for endpoint in piece.endpoints or ())
    ]


def spoil(server: SliceServer, text: str) -> None:
    """Write an invalid annotation on one slice."""
    if server.slices:
        name, piece = min(server.slices.items())
        notes = {**piece.metadata.annotations, WEIGHTS_ANNOTATION: text}
        server.slices[name] = replace(piece, metadata=replace(piece.metadata, annotations=notes))


@settings(max_examples=80)
@given(steps, st.integers(0, 1 << 16))
def test_whatever_happens_slices_end_right(life: list[tuple[str, object]], seed: int) -> None:
    """After any events a pass leaves one valid text, or none, and a second pass writes nothing."""
    draw = random.Random(seed)
    server = SliceServer(hint_request=WISHES[Mode.WEIGHTED], limit=3)
    server.put(pods(3, 2, 1))
    number = 100
    for what, more in life:
        if what == "mode":
            assert isinstance(more, HintRequest)
            server.hint_request = more
        elif what == "cpu":
            assert isinstance(more, list)
            server.shares = shares(*more)
        elif what == "pods":
            assert isinstance(more, list)
            gone = draw.sample(sorted(server.pods), len(server.pods) // 2)
            for name in gone:
                del server.pods[name]
            for index, count in enumerate(more):
                server.put([pod(number + n, ZONES[index]) for n in range(count)])
                number += count
        elif what == "die":
            assert isinstance(more, int)
            server.apply(server.plan(), writes=more)
            server.memory = None
            continue
        elif what == "spoil":
            assert isinstance(more, str)
            spoil(server, more)
        else:
            server.memory = None
        plan = server.sync()
        assert server.settled(), what
        decision = plan.decision
        assert decision is not None
        weights = decision.weights if server.hint_request.mode is Mode.WEIGHTED else ""
        assert set(texts(server)) <= {weights}
        if weights:
            own = plan.families["IPv4"].counts.own
            assert weights_suffice(weights, own, server.shares, server.hint_request.limits)


@pytest.mark.parametrize("text", BAD)
def test_an_invalid_text_is_ignored_and_replaced(text: str) -> None:
    """Proxies use hints as soon as a text is invalid; the next pass writes it again."""
    server = SliceServer(hint_request=WISHES[Mode.WEIGHTED], limit=3)
    server.put(pods(3, 2, 1))
    server.sync()
    location = ClientLocation("c", "n")

    def rule() -> RouteRule:
        computed = compute_service_routes(server.service, server.slices.values(), location, {})
        return computed.ports[0].routes[0].rule

    assert rule() is RouteRule.WEIGHTED
    spoil(server, text)
    assert rule() is RouteRule.SAME_ZONE
    server.sync()
    assert rule() is RouteRule.WEIGHTED


def test_a_service_that_stops_asking_loses_its_weights_where_others_write() -> None:
    """A Service that stops asking loses its weights on slices that others fill, where they would
    stay for ever; hints stay.
    """
    server = SliceServer(limit=100)
    server.put(pods(6, 3, 1))
    server.sync()
    (bare,) = server.slices.values()
    known = shares(1, 1, 1)
    (hinted,) = rehint([bare], WISHES[Mode.WEIGHTED], known).update
    (quiet,) = rehint([hinted], OFF, known).update
    assert WEIGHTS_ANNOTATION not in quiet.metadata.annotations
    assert quiet.endpoints == hinted.endpoints
    assert rehint([quiet], OFF, known).update == ()
    others = HintRequest(reason=Reason(code="NotSelected", message="another controller's"))
    assert rehint([hinted], others, known).update == ()
    (shared,) = rehint([hinted], WISHES[Mode.SHARED], known).update
    assert WEIGHTS_ANNOTATION not in shared.metadata.annotations


def test_a_renamed_zone_gets_weights_of_its_own() -> None:
    """After a zone is renamed no traffic uses the old name, and no endpoint is overloaded."""
    server = SliceServer(hint_request=WISHES[Mode.WEIGHTED], cpu=(1, 1, 1))
    server.put(pods(4, 2, 1))
    server.sync()
    (before,) = set(texts(server))
    assert '"c":{' in before
    server.zones = {**server.zones, "c": "new"}
    named = [ZoneShare(name, 1, 1000, 1000) for name in ("a", "b", "new")]
    server.shares = Shares(tuple(named))
    server.sync()
    (after,) = set(texts(server))
    assert '"c"' not in after
    assert '"new":{' in after
    assert all(
        zone.name != "c"
        for endpoint in server.endpoints()
        if endpoint.hints
        for zone in endpoint.hints.for_zones
    )
    assert server.settled()


def test_nine_zones() -> None:
    """With nine zones and ten endpoints an endpoint names at most eight zones, and the text is
    valid.
    """
    server = SliceServer(hint_request=WISHES[Mode.WEIGHTED], cpu=tuple(range(1, 10)))
    server.put(pods(2, 1, 1, 1, 1, 1, 1, 1, 1))
    server.sync()
    (text,) = set(texts(server))
    assert parse_weights(text) is not None
    assert len(text) < MAX_TEXT_LENGTH
    hinted: list[EndpointSlice] = list(server.slices.values())
    most = max(
        len(endpoint.hints.for_zones) if endpoint.hints else 0
        for piece in hinted
        for endpoint in piece.endpoints or ()
    )
    assert most <= 8
    assert server.settled()
