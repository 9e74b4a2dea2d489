"""An answer is made once, from no more records than are sent; a long one in steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rrset
import pytest
from tests.dns.clusters import Names, endpoint, headless, namespace, pieces, texts

from zonewise.dns.outside.received import reading
from zonewise.dns.sections import SLICE
from zonewise.dns.slices import LongWork, Steps
from zonewise.dns.wire import address_record, read_question
from zonewise.dns.zone import DnsCluster
from zonewise.traffic.dns_answers import read_named_endpoints

BIG = "big.shop.svc.cluster.local."


def names(count: int = 1000) -> Names:
    """A headless Service with many endpoints, a hundred in each slice."""
    cluster = Names(trusted=("192.0.2.0/24",))
    cluster.put(namespace("shop"), headless("big"))
    for part in range(count // 100):
        cluster.put(piece(part))
    return cluster


def piece(part: int, first: int = 10) -> Any:
    """One slice of the Service."""
    piece = pieces("big", [endpoint(f"{first}.0.{part}.{at}") for at in range(1, 101)])
    piece["metadata"]["name"] = f"big-{part:03}"
    return piece


def spellings(name: str, count: int) -> Iterator[str]:
    """A name in ``count`` mixtures of upper and lower case."""
    for number in range(count):
        yield "".join(
            letter.upper() if number >> at % 7 & 1 else letter for at, letter in enumerate(name)
        )


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *given: Any, **more: Any) -> Any:
        self.calls += 1
        return self.function(*given, **more)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["A", "SRV"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_made_once_for_all_spellings_options_and_sizes(
    monkeypatch: pytest.MonkeyPatch, kind: str, stream: bool
) -> None:
    """Questions for one name and type resolve it once, whatever else a client varies in them."""
    cluster = names()
    resolve = Counted(DnsCluster.resolve)
    monkeypatch.setattr(DnsCluster, "resolve", lambda *given: resolve(*given))  # noqa: PLW0108 - as a method
    for number, name in enumerate(spellings(BIG, 100)):
        options = [
            dns.edns.GenericOption(dns.edns.OptionType(10), number.to_bytes(8, "big")),
            dns.edns.ECSOption(f"10.9.0.{number}", 32),
        ]
        answer = cluster.ask(
            name,
            kind,
            stream=stream,
            payload=512 + 37 * number,
            options=options[: number % 3],
            flags=dns.flags.RD if number % 2 else 0,
            want_dnssec=bool(number & 4),
        )
        assert answer.question[0].name.to_text() == name
        assert {records.name.to_text() for records in answer.answer} == {name}
        if kind == "SRV":
            domain = name[-len("cluster.local.") :]
            assert all(str(record).endswith(domain) for record in answer.answer[0])
            assert all(records.name.to_text().endswith(domain) for records in answer.additional)
    assert resolve.calls == 1


def test_no_more_records_are_made_than_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 endpoints, only as many records are made as fit into a packet."""
    cluster = names(5000)
    records = Counted(address_record)
    monkeypatch.setattr("zonewise.dns.zone.address_record", records)
    answer = cluster.ask(BIG, payload=4096)
    assert answer.flags & dns.flags.TC
    assert len(answer.answer[0]) > 200
    assert records.calls <= len(answer.answer[0]) + 2


def test_unknown_zones_and_hosts_do_not_read_all_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions for many zones and hosts that do not exist read the endpoints once."""
    cluster = names()
    cluster.ask(f"x.prefer._zone.{BIG}")
    cluster.ask(f"x.{BIG}")
    every = cluster.directory.endpoints(("shop", "big"))
    walks = Counted(lambda: iter(()))
    monkeypatch.setattr(every, "every", type("Walked", (), {"__iter__": lambda _: walks()})())
    for number in range(20):
        assert len(texts(cluster.ask(f"z{number}.prefer._zone.{BIG}"))) > 200
        assert cluster.code(f"z{number}.pin._zone.{BIG}") == "NODATA"
        assert cluster.code(f"h{number}.{BIG}") == "NXDOMAIN"
        assert cluster.code(f"_p{number}._tcp.{BIG}", "SRV") == "NXDOMAIN"
    assert walks.calls == 0


def test_a_change_of_one_slice_has_one_slice_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service of many slices that change one by one is not read as a whole each time."""
    cluster = names()
    cluster.ask(BIG)
    read = Counted(read_named_endpoints)
    monkeypatch.setattr("zonewise.dns.directory.read_named_endpoints", read)
    for first in (11, 12, 13):
        cluster.put(piece(3, first))
        assert len(texts(cluster.ask(BIG, stream=True))) == 1000
    assert read.calls == 3


def test_orders_take_turns_over_all_spellings() -> None:
    """Clients that spell a name differently also get different first endpoints."""
    cluster = names()
    first = [str(cluster.ask(name, payload=512).answer[0][0]) for name in spellings(BIG, 30)]
    assert len(set(first)) == 10


def long_answer(records: int) -> tuple[bytes, bytes]:
    """A question, and an answer with as many addresses as ``records`` says."""
    query = dns.message.make_query("many.example.", "A")
    response = dns.message.make_response(query)
    addresses = [f"10.{at >> 8}.{at & 255}.1" for at in range(records)]
    response.answer.append(dns.rrset.from_text("many.example.", 60, "IN", "A", *addresses))
    return query.to_wire(), response.to_wire(max_size=65_535)


def test_long_answers_of_upstreams_are_read_in_steps() -> None:
    """After every ``SLICE`` records other tasks may run."""
    query, response = long_answer(4000)
    work = reading(response, read_question(query))
    assert sum(1 for _ in work) == 4000 // SLICE


@pytest.mark.asyncio
async def test_one_piece_of_long_work_goes_on_in_a_turn() -> None:
    """A turn of the event loop does one step of one answer, however many are waiting."""
    long = LongWork()
    steps: list[int] = []

    def work(number: int) -> Steps[int]:
        for _ in range(5):
            steps.append(number)
            yield
        return number

    tasks = [asyncio.create_task(long.run(work(number))) for number in range(10)]
    while len(steps) < 50:
        before = len(steps)
        await asyncio.sleep(0)
        assert len(steps) - before <= 1
    assert await asyncio.gather(*tasks) == list(range(10))
    assert steps == sorted(steps)


@pytest.mark.asyncio
async def test_an_answer_that_changes_while_it_is_written_is_not_cached() -> None:
    """A long answer takes several turns; the next client gets the current records."""
    cluster = names()
    query = dns.message.make_query(BIG, "A").to_wire()
    response = cluster.responder.respond(query, "10.0.0.1", stream=True)
    assert response is not None
    assert not isinstance(response, bytes)
    task = asyncio.ensure_future(response)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    cluster.put(piece(3, first=11))
    assert not task.done()
    assert "10.0.3.1" in texts(dns.message.from_wire(await task))
    again = cluster.responder.respond(query, "10.0.0.1", stream=True)
    assert again is not None
    assert not isinstance(again, bytes)
    now = texts(dns.message.from_wire(await again))
    assert "10.0.3.1" not in now
    assert "11.0.3.1" in now
    assert isinstance(cluster.responder.respond(query, "10.0.0.1", stream=True), bytes)
