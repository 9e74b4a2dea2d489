"""Metrics as Prometheus reads them, and the port they are on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from zonewise.api.errors import ConfigError
from zonewise.runtime.client.watch import WatchStats
from zonewise.runtime.controller.queue import Queue
from zonewise.runtime.monitoring.health import Health
from zonewise.runtime.monitoring.metrics import Metrics
from zonewise.runtime.monitoring.monitor import Monitor
from zonewise.runtime.serving.address import parse_listen

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(metrics: Metrics) -> Series:
    """Every sample by name and labels; parsing fails if a series appears twice in a family."""
    samples: Series = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in samples
            samples[key] = sample.value
    return samples


def value(metrics: Metrics, name: str, /, **labels: str) -> float:
    return read(metrics)[(name, frozenset(labels.items()))]


def test_watches_are_read_when_scraped() -> None:
    """The age of the last byte is computed when metrics are read."""
    now = [100.0]
    metrics = Metrics(clock=lambda: now[0])
    stats = WatchStats("pods", namespace="a", started=90.0, last_byte=99.0, relists=2, too_old=1)
    metrics.watches(lambda: [stats])
    labels = {"resource": "pods", "namespace": "a"}
    assert value(metrics, "zonewise_watch_last_byte_age_seconds", **labels) == 1
    now[0] = 150.0
    assert value(metrics, "zonewise_watch_last_byte_age_seconds", **labels) == 51
    assert value(metrics, "zonewise_watch_relists_total", **labels) == 2
    assert value(metrics, "zonewise_watch_too_old_total", **labels) == 1
    assert value(metrics, "zonewise_watch_synced", **labels) == 0


def test_a_watch_that_has_not_begun_has_no_age() -> None:
    """A follower whose watches start when it leads causes no alarm before."""
    metrics = Metrics(clock=lambda: 1e6)
    metrics.watches(lambda: [WatchStats("pods")])
    labels = {"resource": "pods", "namespace": ""}
    assert value(metrics, "zonewise_watch_last_byte_age_seconds", **labels) == 0


def test_watches_of_one_resource_are_one_series() -> None:
    """Watches that differ only in their selectors show the worst age and the sum of counts."""
    metrics = Metrics(clock=lambda: 100.0)
    first = WatchStats("pods", last_byte=99.0, events=3, synced=True)
    second = WatchStats("pods", last_byte=50.0, events=4)
    metrics.watches(lambda: [first])
    metrics.watches(lambda: [second])
    labels = {"resource": "pods", "namespace": ""}
    assert value(metrics, "zonewise_watch_last_byte_age_seconds", **labels) == 50
    assert value(metrics, "zonewise_watch_events_total", **labels) == 7
    assert value(metrics, "zonewise_watch_synced", **labels) == 0


@pytest.mark.looptime
async def test_queues_are_read_when_scraped() -> None:
    """Depth, delays, work and waits of a queue are its current values."""
    metrics = Metrics()
    queue: Queue[str] = Queue()
    metrics.queue("hints", queue)
    queue.add("a")
    queue.add("b")
    queue.add_after("c", 60)
    await asyncio.sleep(0.02)
    assert await queue.get() == "a"
    assert value(metrics, "workqueue_depth", name="hints") == 1
    assert value(metrics, "workqueue_active", name="hints") == 1
    assert value(metrics, "workqueue_delayed", name="hints") == 1
    assert value(metrics, "workqueue_adds_total", name="hints") == 2
    assert value(metrics, "workqueue_queue_duration_seconds_bucket", name="hints", le="0.01") == 0
    assert value(metrics, "workqueue_queue_duration_seconds_bucket", name="hints", le="0.03") == 1
    queue.close(drop=True)


async def test_reconciles_are_counted_by_result() -> None:
    """Every result of a controller has a series from the start, so that rates begin at zero."""
    metrics = Metrics()
    observe = metrics.controller("hints")
    observe("done", 0.5)
    observe("error", 0.1)
    observe("done", 0.2)
    counts = {
        result: value(metrics, "zonewise_reconcile_total", controller="hints", result=result)
        for result in ("done", "again", "error", "terminal")
    }
    assert counts == {"done": 2, "again": 0, "error": 1, "terminal": 0}
    assert value(metrics, "workqueue_work_duration_seconds_sum", name="hints") == pytest.approx(0.8)


async def test_leadership_is_a_gauge() -> None:
    """A follower shows 0 from its start, a leader 1."""
    metrics = Metrics()
    changed = metrics.leading("zonewise-hints")
    assert value(metrics, "leader_election_master_status", name="zonewise-hints") == 0
    changed(True)
    assert value(metrics, "leader_election_master_status", name="zonewise-hints") == 1
    changed(False)
    assert value(metrics, "leader_election_master_status", name="zonewise-hints") == 0


async def test_counters_of_other_parts_are_shown() -> None:
    """Counters that a part has as plain numbers appear with one label."""
    metrics = Metrics()
    dropped = {"limit": 3, "full": 0}
    metrics.counts("zonewise_events_dropped", "Events not sent.", "reason", lambda: dropped)
    assert value(metrics, "zonewise_events_dropped_total", reason="limit") == 3
    assert value(metrics, "zonewise_events_dropped_total", reason="full") == 0


@pytest.fixture
async def monitor() -> AsyncIterator[tuple[Monitor, Health]]:
    health = Health()
    async with Monitor(Metrics(), health, listen="127.0.0.1:0") as running:
        yield running, health


async def fetch(monitor: Monitor, path: str, method: str = "GET") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{monitor.port}{path}") as answer,
    ):
        return answer.status, answer.headers.get("Content-Type", ""), await answer.text()


async def test_metrics_are_served_as_text(monitor: tuple[Monitor, Health]) -> None:
    """Prometheus gets its content type and a body it can parse."""
    status, kind, text = await fetch(monitor[0], "/metrics")
    assert status == 200 and kind.startswith("text/plain; version=")
    assert any(text_string_to_metric_families(text))


async def test_probes_tell_good_from_bad(monitor: tuple[Monitor, Health]) -> None:
    """A failed check turns its probe to 503 and is named; with verbose all checks are."""
    server, health = monitor
    health.add_alive("watches", lambda: None)
    health.add_ready("cache", lambda: "still reading pods")
    for path in ("/livez", "/healthz"):
        assert (await fetch(server, path))[::2] == (200, "ok\n")
    assert (await fetch(server, "/readyz"))[::2] == (
        503,
        "[-] cache: still reading pods\nfailed\n",
    )
    assert (await fetch(server, "/readyz?verbose"))[2] == (
        "[+] watches\n[-] cache: still reading pods\nfailed\n"
    )


async def test_only_reading_is_possible(monitor: tuple[Monitor, Health]) -> None:
    """The port accepts GET and HEAD, and has four paths."""
    server, _ = monitor
    assert (await fetch(server, "/livez", "HEAD"))[0] == 200
    assert (await fetch(server, "/livez", "POST"))[0] == 405
    assert (await fetch(server, "/debug"))[0] == 404


async def test_a_taken_port_is_a_sentence(monitor: tuple[Monitor, Health]) -> None:
    """The error about an address in use names the flag that changes it."""
    second = Monitor(Metrics(), Health(), listen=f"127.0.0.1:{monitor[0].port}")
    with pytest.raises(ConfigError, match="--metrics-listen"):
        await second.start()


async def test_stopping_frees_the_port() -> None:
    """After stop the port is closed, and stopping twice is allowed."""
    running = Monitor(Metrics(), Health(), listen="127.0.0.1:0")
    await running.start()
    await running.stop()
    await running.stop()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection("127.0.0.1", running.port)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("[::1]:0", ("::1", 0)),
        (":9464", ("", 9464)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_addresses_to_listen_on(text: str, expected: tuple[str, int]) -> None:
    """Every usual way to write an address is understood."""
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["", "9464", "a:b", "::1:9464", "[x]:1", "h:65536", "h:²", "h:"])
def test_bad_addresses_are_refused(text: str) -> None:
    """The error about an invalid address has an example."""
    with pytest.raises(ConfigError, match=r"write it like 127\.0\.0\.1:9464"):
        parse_listen(text)
