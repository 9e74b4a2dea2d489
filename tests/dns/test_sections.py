"""Answers are made once, of no more records than are sent, and long ones in slices."""

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
    found = Names(trusted=("192.0.2.0/24",))
    found.put(namespace("shop"), headless("big"))
    for part in range(count // 100):
        found.put(piece(part))
    return found


def piece(part: int, first: int = 10) -> Any:
    """One slice of the Service."""
    found = pieces("big", [endpoint(f"{first}.0.{part}.{at}") for at in range(1, 101)])
    found["metadata"]["name"] = f"big-{part:03}"
    return found


def spellings(name: str, count: int) -> Iterator[str]:
    """A name in so many spellings."""
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
    """What a client varies in a question for one name and type makes nobody wait for records."""
    found = names()
    resolve = Counted(DnsCluster.resolve)
    monkeypatch.setattr(DnsCluster, "resolve", lambda *given: resolve(*given))  # noqa: PLW0108 - as a method
    for number, name in enumerate(spellings(BIG, 100)):
        options = [
            dns.edns.GenericOption(dns.edns.OptionType(10), number.to_bytes(8, "big")),
            dns.edns.ECSOption(f"10.9.0.{number}", 32),
        ]
        answer = found.ask(
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
            assert all(str(one).endswith(domain) for one in answer.answer[0])
            assert all(one.name.to_text().endswith(domain) for one in answer.additional)
    assert resolve.calls == 1


def test_no_more_records_are_made_than_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 5,000 endpoints as many as fit into a packet, with or without an OPT."""
    found = names(5000)
    made = Counted(address_record)
    monkeypatch.setattr("zonewise.dns.zone.address_record", made)
    answer = found.ask(BIG, payload=4096)
    assert answer.flags & dns.flags.TC
    assert len(answer.answer[0]) > 200
    assert made.calls <= len(answer.answer[0]) + 2


def test_names_of_any_zone_and_any_host_are_no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many zones and hosts that do not exist are asked for, endpoints are read once."""
    found = names()
    found.ask(f"x.prefer._zone.{BIG}")
    found.ask(f"x.{BIG}")
    every = found.directory.endpoints(("shop", "big"))
    walks = Counted(lambda: iter(()))
    monkeypatch.setattr(every, "every", type("Walked", (), {"__iter__": lambda _: walks()})())
    for number in range(20):
        assert len(texts(found.ask(f"z{number}.prefer._zone.{BIG}"))) > 200
        assert found.code(f"z{number}.pin._zone.{BIG}") == "NODATA"
        assert found.code(f"h{number}.{BIG}") == "NXDOMAIN"
        assert found.code(f"_p{number}._tcp.{BIG}", "SRV") == "NXDOMAIN"
    assert walks.calls == 0


def test_a_change_of_one_slice_has_one_slice_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service of many slices that change one by one is not read as a whole each time."""
    found = names()
    found.ask(BIG)
    read = Counted(read_named_endpoints)
    monkeypatch.setattr("zonewise.dns.directory.read_named_endpoints", read)
    for first in (11, 12, 13):
        found.put(piece(3, first))
        assert len(texts(found.ask(BIG, stream=True))) == 1000
    assert read.calls == 3


def test_orders_take_turns_over_all_spellings() -> None:
    """Clients that spell a name differently begin at different endpoints, as others do."""
    found = names()
    first = [str(found.ask(name, payload=512).answer[0][0]) for name in spellings(BIG, 30)]
    assert len(set(first)) == 10


def long_answer(records: int) -> tuple[bytes, bytes]:
    """A question, and an answer of so many addresses."""
    query = dns.message.make_query("many.example.", "A")
    response = dns.message.make_response(query)
    addresses = [f"10.{at >> 8}.{at & 255}.1" for at in range(records)]
    response.answer.append(dns.rrset.from_text("many.example.", 60, "IN", "A", *addresses))
    return query.to_wire(), response.to_wire(max_size=65_535)


def test_long_answers_of_others_are_read_in_slices() -> None:
    """Others run after every so many records."""
    asked, told = long_answer(4000)
    work = reading(told, read_question(asked))
    assert sum(1 for _ in work) == 4000 // SLICE


@pytest.mark.asyncio
async def test_one_piece_of_long_work_goes_on_in_a_turn() -> None:
    """However many there are, a turn of the event loop has one slice of one of them."""
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
async def test_what_changes_while_it_is_written_is_not_kept() -> None:
    """A long answer takes several turns; the next client gets what is true then."""
    found = names()
    query = dns.message.make_query(BIG, "A").to_wire()
    told = found.responder.respond(query, "10.0.0.1", stream=True)
    assert told is not None
    assert not isinstance(told, bytes)
    task = asyncio.ensure_future(told)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    found.put(piece(3, first=11))
    assert not task.done()
    assert "10.0.3.1" in texts(dns.message.from_wire(await task))
    again = found.responder.respond(query, "10.0.0.1", stream=True)
    assert again is not None
    assert not isinstance(again, bytes)
    now = texts(dns.message.from_wire(await again))
    assert "10.0.3.1" not in now
    assert "11.0.3.1" in now
    assert isinstance(found.responder.respond(query, "10.0.0.1", stream=True), bytes)
