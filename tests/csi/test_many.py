"""Twenty thousand volumes: a look-up is a point read, and pages are complete."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import msgspec
import pytest
from tests.csi.scene import MIB, calling, config, pool

from zonewise.csi.driver import JOURNAL_FILE
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import EntryState, JournalEntry

MANY = 20_000


def filled(folder: Path) -> None:
    """Fill a journal with many finished volumes."""
    database = sqlite3.connect(folder / "data" / JOURNAL_FILE)
    with database:
        for number in range(MANY):
            uuid = f"{number * 7919 % 2**32:032x}"
            entry = JournalEntry(
                kind=StoredKind.VOLUME,
                uuid=uuid,
                name=f"old-{number}",
                state=EntryState.CREATED,
                pool="pool-a",
                segments={"region": "r1", "zone": "a"},
                pinned=True,
                bytes=MIB,
                access="folder",
                revision=2,
            )
            row = ("volume", uuid, entry.name, "created", "pool-a", MIB, "", 2)
            database.execute(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, msgspec.json.encode(entry)),
            )
        database.execute("INSERT INTO pools VALUES ('pool-a', ?)", (MANY * MIB,))
    database.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_many_volumes(tmp_path: Path) -> None:
    """Creating reads by index only; a list during changes has each old volume once."""
    text = config(pool("pool-a", "a", "40Ti"))
    with calling(tmp_path, text, privileged=False):
        pass
    filled(tmp_path)
    with calling(tmp_path, text, privileged=False) as caller:
        everything: list[str] = []
        token = ""
        while token or not everything:
            whole = await caller.client.call(
                methods.LIST_VOLUMES, csi.ListVolumesRequest(starting_token=token)
            )
            assert whole.ByteSize() < 4 << 20, "no caller takes a larger message"
            everything += [entry.volume.volume_id for entry in whole.entries]
            token = whole.next_token
        assert len(everything) == len(set(everything)) == MANY
        plans = explained(tmp_path / "data" / JOURNAL_FILE)
        assert all("SEARCH" in plan and "SCAN" not in plan for plan in plans), plans
        listed: list[str] = []
        token, turn = "", 0
        while True:
            request = csi.ListVolumesRequest(max_entries=1000, starting_token=token)
            answer = await caller.client.call(methods.LIST_VOLUMES, request)
            listed += [entry.volume.volume_id for entry in answer.entries]
            token, turn = answer.next_token, turn + 1
            created = await asyncio.gather(*(caller.create(f"new-{turn}-{n}") for n in range(3)))
            await caller.delete(created[0].volume_id)
            if not token:
                break
        old = [f"vol-{number * 7919 % 2**32:032x}" for number in range(MANY)]
        assert len(listed) == len(set(listed))
        assert set(old) <= set(listed)
        assert turn >= MANY // 1000


def explained(file: Path) -> list[str]:
    """SQLite's plans for the queries of a create."""
    database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    questions = (
        "SELECT body FROM entries WHERE stored = 'volume' AND name = 'x'",
        "SELECT body FROM entries WHERE stored = 'volume' AND uuid = 'x'",
        "SELECT promised FROM pools WHERE name = 'x'",
    )
    plans = [
        " ".join(row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {question}"))
        for question in questions
    ]
    database.close()
    return plans
