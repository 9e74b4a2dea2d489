"""The journal in SQLite: the contract, durability, point reads, and invalid files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.csi.journal_contract import (
    JournalContract,
    OpenJournal,
    reserved,
    uuid_of,
    volume,
)

from zonewise.api.errors import ConfigError
from zonewise.csi.sqlite_journal import SqliteJournal
from zonewise.storage.errors import CsiCode, StorageError
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import Holder

WRITER = """
import sys
from pathlib import Path
from zonewise.csi.sqlite_journal import SqliteJournal
from zonewise.storage.identifiers import StoredKind
from zonewise.storage.journal import JournalEntry

journal = SqliteJournal(Path(sys.argv[1]))
begin = int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(begin, begin + int(sys.argv[3])):
    uuid = f"{number:032x}"
    name = f"pvc-{number % 1000}"
    entry = JournalEntry(kind=StoredKind.VOLUME, uuid=uuid, name=name, pool="a", bytes=1)
    answer = journal.reserve(entry, 150)
    print(number if answer.entry else -1, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the journal."""
    return tmp_path / "journal.db"


@pytest.fixture
def open_journal(path: Path) -> Iterator[OpenJournal]:
    """Opens one more journal on the same file; all are closed at the end."""
    opened: list[SqliteJournal] = []

    def another() -> SqliteJournal:
        opened.append(SqliteJournal(path))
        return opened[-1]

    yield another
    for journal in opened:
        journal.close()


class TestSqliteJournal(JournalContract):
    """The contract in a file."""


def writer(path: Path, begin: int, count: int) -> subprocess.Popen[str]:
    """Another process that is ready to reserve names."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(begin), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    """Let a writer begin."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.system
def test_what_was_acknowledged_survives_a_kill(path: Path) -> None:
    """A process killed in between lost nothing that it acknowledged, and holds nothing."""
    process = writer(path, 1, 100)
    go(process)
    assert process.stdout is not None
    acknowledged = [int(process.stdout.readline()) for _ in range(20)]
    process.kill()
    acknowledged += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.communicate()
    journal = SqliteJournal(path)
    entries = journal.list_page(StoredKind.VOLUME).entries
    assert {uuid_of(number) for number in acknowledged} <= {entry.uuid for entry in entries}
    assert journal.promised_bytes() == {"a": len(entries)}
    assert {journal.holder_of(entry) for entry in entries} == {Holder.NOBODY}
    journal.close()


@pytest.mark.system
def test_two_processes(path: Path) -> None:
    """Of two processes that reserve the same hundred names at once, each name and its room go to
    one.
    """
    processes = [writer(path, 1, 100), writer(path, 1001, 100)]
    for process in processes:
        go(process)
    outputs = [process.communicate()[0].split() for process in processes]
    won = [int(line) for lines in outputs for line in lines if line != "-1"]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(number % 1000 for number in won) == list(range(1, 101))
    journal = SqliteJournal(path)
    assert journal.promised_bytes() == {"a": 100}
    journal.close()


@pytest.mark.system
def test_another_process_lives(path: Path) -> None:
    """An entry of a living process is another's, and free as soon as it was killed."""
    process = writer(path, 1, 1)
    go(process)
    assert process.stdout is not None
    process.stdout.readline()
    journal = SqliteJournal(path)
    entry = journal.find(StoredKind.VOLUME, "pvc-1")
    assert entry is not None
    assert journal.holder_of(entry) is Holder.OTHER
    process.kill()
    process.communicate()
    assert journal.holder_of(entry) is Holder.NOBODY
    journal.close()


def test_look_ups_are_point_reads(path: Path) -> None:
    """With 20,000 volumes a look-up by name or uuid is a search in an index, never a scan."""
    journal = SqliteJournal(path)
    reserved(journal, volume(1), None)
    journal.close()
    database = sqlite3.connect(path)
    database.execute("DELETE FROM entries")
    database.executemany(
        "INSERT INTO entries VALUES ('volume', ?, ?, 'created', 'a', 1, '', 1, ?)",
        (
            (
                uuid_of(number),
                f"pvc-{number}",
                b'{"stored":"volume","uuid":"%032x","name":"pvc-%d","pool":"a","bytes":1}'
                % (number, number),
            )
            for number in range(20_000)
        ),
    )
    database.commit()
    for column in ("name", "uuid"):
        question = f"EXPLAIN QUERY PLAN SELECT body FROM entries WHERE stored = ? AND {column} = ?"
        plan = [row[3] for row in database.execute(question, ("volume", "x"))]
        assert len(plan) == 1
        assert plan[0].startswith("SEARCH entries USING")
        assert f"(stored=? AND {column}=?)" in plan[0]
    database.close()
    journal = SqliteJournal(path)
    entry = journal.find(StoredKind.VOLUME, "pvc-19999")
    assert entry is not None
    assert entry.uuid == uuid_of(19_999)
    token, seen = "", 0
    while True:
        page = journal.list_page(StoredKind.VOLUME, token=token, limit=999)
        seen += len(page.entries)
        if not (token := page.token):
            break
    assert seen == 20_000
    journal.close()


def test_nothing_is_left_when_all_is_deleted(path: Path) -> None:
    """With everything forgotten and closed, there are only the two files of a new journal."""
    journal = SqliteJournal(path)
    journal.close()
    new = sorted(file.name for file in path.parent.iterdir())
    journal = SqliteJournal(path)
    entries = [reserved(journal, volume(number)) for number in range(1, 50)]
    for entry in entries:
        journal.forget(entry)
    journal.close()
    assert (
        sorted(file.name for file in path.parent.iterdir()) == new == ["journal.db", "journal.lock"]
    )


def test_reading_draws_no_number(path: Path) -> None:
    """Reading writes nothing: the file is unchanged."""
    SqliteJournal(path).close()
    before = path.read_bytes()
    journal = SqliteJournal(path)
    assert journal.list_page(StoredKind.VOLUME).entries == ()
    assert journal.find(StoredKind.VOLUME, "x") is None
    journal.close()
    assert path.read_bytes() == before


def test_a_locked_file_is_unavailable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal locked by another process answers UNAVAILABLE, and works when it is free."""
    monkeypatch.setattr("zonewise.csi.sqlite_journal.BUSY_SECONDS", 0.01)
    journal = SqliteJournal(path)
    entry = reserved(journal, volume(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError) as refused:
        journal.change(entry, entry.as_created())
    assert refused.value.code is CsiCode.UNAVAILABLE
    other.execute("ROLLBACK")
    other.close()
    journal.change(entry, entry.as_created())
    journal.close()


def test_files_that_are_no_journal(tmp_path: Path) -> None:
    """A file of another program, a broken one and a missing folder are refused in a sentence."""
    foreign = tmp_path / "foreign.db"
    database = sqlite3.connect(foreign)
    database.execute("CREATE TABLE x (y)")
    database.close()
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"this is no database at all, but long enough to be read as one" * 50)
    for path in (foreign, broken, tmp_path / "missing" / "journal.db"):
        with pytest.raises(ConfigError, match="journal"):
            SqliteJournal(path)
