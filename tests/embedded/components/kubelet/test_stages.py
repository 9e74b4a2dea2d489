"""Stages, commands and addresses, without a cluster."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zonewise.api.codec import convert
from zonewise.api.errors import ConfigError
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.pod import Container, Pod, PodSpec
from zonewise.embedded.components.kubelet.commands import Outcome, predict_outcome
from zonewise.embedded.components.kubelet.ipam import AddressPool, NodeCidrAllocator
from zonewise.embedded.components.kubelet.pod_lifecycle import PodProgress, advance, read_progress
from zonewise.embedded.components.kubelet.pod_status import PodAddresses, generate_pod_status
from zonewise.embedded.components.kubelet.stages import (
    DelayRange,
    backoff_seconds,
    default_stages,
    parse_delay,
    read_stages,
    with_delays,
)

NOW = 1_750_000_000.0
STAGES = default_stages()


def pod(*, restart: str = "Always", uid: str = "u1", **annotations: str) -> Pod:
    """A bound pod with one container."""
    marks = {f"zonewise.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return Pod(
        metadata=ObjectMeta(name="web", namespace="default", uid=uid, annotations=marks),
        spec=PodSpec(node_name="n1", containers=(Container(name="c"),), restart_policy=restart),
    )


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0s", DelayRange(0, 0)),
        ("1m30s", DelayRange(90, 90)),
        ("500ms..2s", DelayRange(0.5, 2)),
        ("never", DelayRange(inf, inf)),
        ("backoff", DelayRange(0, 0, backoff=True)),
    ],
)
def test_times(text: str, meant: DelayRange) -> None:
    """A time is a duration, a range of them, never, or the pause before a restart."""
    assert parse_delay(text) == meant


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("- {name: a, in: [bound], do: fly}", "entry [0].do cannot be 'fly'"),
        ("- {name: a, in: [bound], do: ready}", 'a pod that is bound cannot "ready"'),
        ("- {name: a, in: [bound], do: start, after: soon}", 'stage a: "soon" is not a time'),
        ("- {name: a, in: [bound], do: start, after: 5s..1s}", "ends before it begins"),
        ("- {name: a, in: [bound], do: start, wen: x}", "entry [0] has wen, which is unknown"),
        ("- {name: a, do: start}", "entry [0] lacks in"),
        ("{", "is not YAML"),
    ],
)
def test_impossible_stages_are_refused(text: str, fault: str) -> None:
    """The error names the place in the file."""
    with pytest.raises(ConfigError, match="file") as caught:
        read_stages(text, "file")
    assert fault in str(caught.value)


def test_the_default_stages_are_valid() -> None:
    """Our own file is valid, and its times can be set by name."""
    stages = default_stages()
    assert [stage.name for stage in stages["terminating"]] == ["stop"]
    changed = with_delays(stages, start="7s")
    assert changed["bound"][0].after == DelayRange(7, 7)
    assert changed["running"] == stages["running"]


def test_the_earliest_stage_happens_first() -> None:
    """Of two stages the earlier one wins, whatever their order in the file."""
    text = """
    - {name: late, in: [ready], after: 20s, do: exit}
    - {name: soon, in: [ready], after: 10s, do: unready}
    - {name: other, in: [ready], after: 1s, do: exit, match: {labels: {app: other}}}
    - {name: not, in: [ready], after: 2s, do: exit, unless: {namespaces: [default]}}
    """
    stages = read_stages(text, "file")
    progress = PodProgress("ready", NOW, started=NOW)
    step = advance(pod(), progress, stages, now=NOW, seed=1)
    assert (step.progress, step.next_at) == (progress, NOW + 10)
    step = advance(pod(), progress, stages, now=NOW + 10, seed=1)
    assert step.progress.state == "running"


@settings(deadline=None)
@given(seed=st.integers(0, 2**64 - 1), uid=st.text(max_size=8))
def test_a_drawn_time_depends_on_seed_pod_and_stage_alone(seed: int, uid: str) -> None:
    """A drawn time is within its range and the same at every call."""
    stage = read_stages("- {name: a, in: [bound], after: 1s..9s, do: start}", "f")["bound"][0]
    first = stage.delay(pod(uid=uid), seed=seed, restarts=0)
    assert 1 <= first <= 9
    assert stage.delay(pod(uid=uid), seed=seed, restarts=0) == first


def test_pauses_before_restarts_grow_up_to_five_minutes() -> None:
    """A container is restarted without a pause at first, then after 10 s, doubled each time to at
    most five minutes.
    """
    assert [backoff_seconds(count) for count in (0, 1, 2, 5, 6, 100)] == [0, 10, 20, 160, 300, 300]
    assert backoff_seconds(2_000_000) == 300


def test_a_container_that_ran_long_is_restarted_at_once() -> None:
    """A container that ran for ten minutes is restarted without a pause."""
    progress = PodProgress(
        "ended", NOW, restarts=5, exit_code=1, last_started=NOW - 3600, last_ended=NOW
    )
    step = advance(pod(), progress, default_stages(), now=NOW, seed=1)
    assert (step.progress.state, step.progress.restarts) == ("ready", 6)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ((), Outcome()),
        (("true",), Outcome(0, 0)),
        (("/bin/false",), Outcome(1, 0)),
        (("sleep", "3600"), Outcome(0, 3600)),
        (("sleep", "infinity"), Outcome(0, inf)),
        (("sh", "-c", "exit 1"), Outcome(1, 0)),
        (("/bin/sh", "-ec", "echo hello; sleep 5 && exit 7"), Outcome(7, 5)),
        (("sh", "-c", "exit 2; sleep 9"), Outcome(2, 0)),
        (("sh", "-c", "while true; do sleep 1; done"), Outcome()),
        (("nginx", "-g", "daemon off;"), Outcome()),
        (("sh", "-c", "exit " + "9" * 5000), Outcome()),
    ],
)
def test_commands_are_recognised(words: tuple[str, ...], meant: Outcome) -> None:
    """Commands that clearly end have a known end; the rest is unknown."""
    container = Container(name="c", command=words[:1], args=words[1:])
    assert predict_outcome(Pod(spec=PodSpec(containers=(container,)))) == meant


def test_a_pod_ends_as_the_worst_of_its_containers() -> None:
    """A pod ends when the last of its containers does; its end is unknown as long as that of one
    is.
    """
    quick = Container(name="a", command=("sh", "-c", "exit 3"))
    slow = Container(name="b", command=("sleep", "8"))
    unknown = Container(name="c", image="registry.invalid/web:1")
    pause = Container(name="c", image="registry.invalid/pause:3.10")
    for containers, meant in (
        ((quick, slow), Outcome(3, 8)),
        ((quick, unknown), Outcome(3, None)),
        ((quick, pause), Outcome(3, inf)),
    ):
        assert predict_outcome(Pod(spec=PodSpec(containers=containers))) == meant


def test_nothing_is_reported_twice() -> None:
    """A status that would not change is not written again."""
    whole = pod()
    step = advance(whole, read_progress(whole, NOW), default_stages(), now=NOW, seed=1)
    addresses = PodAddresses(("192.0.2.1",), ("10.0.0.2",))
    status = generate_pod_status(whole, step.progress, addresses, NOW)
    assert status is not None
    reported = convert(Pod, {"metadata": {"uid": "u1"}, "status": status})
    again = Pod(metadata=whole.metadata, spec=whole.spec, status=reported.status)
    assert read_progress(again, NOW + 5).state == "ready"
    assert generate_pod_status(again, read_progress(again, NOW + 5), addresses, NOW + 5) is None


def test_addresses_are_used_again_last() -> None:
    """A freed address is not used while others are free, and never twice at once."""
    addresses = AddressPool("192.0.2.0/29")
    addresses.mark_used("192.0.2.4")
    addresses.mark_used("198.51.100.1")
    addresses.mark_used("nonsense")
    assert [addresses.allocate() for _ in range(3)] == ["192.0.2.2", "192.0.2.3", "192.0.2.5"]
    addresses.release("192.0.2.2")
    assert [addresses.allocate() for _ in range(3)] == ["192.0.2.6", "192.0.2.2", None]


def test_tiny_networks_give_what_they_have() -> None:
    """A network without free addresses gives None."""
    assert AddressPool("192.0.2.0/32").allocate() is None
    assert AddressPool("fd00::/126").allocate() == "fd00::2"


def test_a_range_may_name_an_address_in_it() -> None:
    """A server accepts 192.0.2.9/29 as the range of a node, and its pods get addresses."""
    assert AddressPool("192.0.2.9/29").allocate() == "192.0.2.10"


def test_ranges_are_cut_in_step() -> None:
    """A node's ranges have the same index in each network; given ones are kept."""
    ranges = NodeCidrAllocator(("10.0.0.0/22", "fd00::/48"), mask_sizes=(24, 64))
    ranges.mark_used(("10.0.1.0/24",))
    assert ranges.allocate() == ("10.0.0.0/24", "fd00::/64")
    assert ranges.allocate() == ("10.0.2.0/24", "fd00:0:0:2::/64")
    assert ranges.allocate() == ("10.0.3.0/24", "fd00:0:0:3::/64")
    assert ranges.allocate() is None
    ranges.release(("10.0.1.0/24",))
    assert ranges.allocate() == ("10.0.1.0/24", "fd00:0:0:1::/64")


def test_a_large_foreign_range_takes_all_its_numbers() -> None:
    """A Node that brings a larger block takes all the numbers in it."""
    ranges = NodeCidrAllocator(("10.0.0.0/22",), mask_sizes=(24,))
    ranges.mark_used(("10.0.0.0/23", "172.16.0.0/24", "nonsense"))
    assert ranges.allocate() == ("10.0.2.0/24",)


def lived(start: Pod, *, remembering: bool, seconds: int) -> list[tuple[float, object]]:
    """The writes about a pod by a kubelet with or without state in memory."""
    addresses = PodAddresses(("192.0.2.1",), ("10.0.0.2",))
    whole, now, written = start, NOW, list[tuple[float, object]]()
    progress = read_progress(whole, now)
    while now <= NOW + seconds:
        step = advance(whole, progress, STAGES, now=now, seed=1)
        status = generate_pod_status(whole, step.progress, addresses, now)
        if status is not None:
            written.append((now, status))
            reported = convert(Pod, {"metadata": {}, "status": status}).status
            whole = Pod(metadata=start.metadata, spec=start.spec, status=reported)
        progress = step.progress if remembering else read_progress(whole, now)
        if step.next_at == inf:
            break
        now = step.next_at
    return written


SECONDS = st.integers(0, 20).map(lambda number: f"{number}s")


@settings(deadline=None)
@given(
    restart=st.sampled_from(["Always", "OnFailure", "Never"]),
    marks=st.fixed_dictionaries(
        {},
        optional={
            "starts_after": SECONDS,
            "ready_after": SECONDS,
            "runs_for": SECONDS,
            "exit_code": st.sampled_from(["0", "1"]),
            "unready": st.just("true"),
        },
    ),
)
def test_all_that_matters_is_in_the_object(restart: str, marks: dict[str, str]) -> None:
    """A kubelet that restarts before every pass writes the same as one that keeps running."""
    whole = pod(restart=restart, **marks)
    first = lived(whole, remembering=True, seconds=200)
    assert lived(whole, remembering=False, seconds=200) == first
    times = [moment for moment, _ in first]
    assert times == sorted(times)
    assert len(first) < 40
