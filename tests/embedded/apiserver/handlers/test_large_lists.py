"""Lists of megabytes: written in slices, and shared by concurrent readers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.apiserver.program import running

pytestmark = pytest.mark.system

PATH = "/api/v1/namespaces/default/configmaps"
SIZE = 300_000


def test_large_lists(tmp_path: Path) -> None:
    """Many readers of a large list get all of it, with the latest writes."""
    with running(tmp_path / "data") as program:
        expected: set[str] = set()

        def listed(_: int) -> dict[str, str]:
            listing: Any = program.ask("GET", PATH)
            assert listing["kind"] == "ConfigMapList"
            return {
                item["metadata"]["name"]: item["metadata"]["resourceVersion"]
                for item in listing["items"]
                if item["metadata"]["name"].startswith("large-") and len(item["data"]["a"]) == SIZE
            }

        with ThreadPoolExecutor(8) as readers:
            for number in range(6):
                name = f"large-{number}"
                content = {"metadata": {"name": name}, "data": {"a": "x" * SIZE}}
                created = program.ask("POST", PATH, content)
                expected.add(name)
                for versions in readers.map(listed, range(8)):
                    assert set(versions) == expected
                    assert versions[name] == created["metadata"]["resourceVersion"]
            program.ask("DELETE", f"{PATH}/large-0")
            assert all("large-0" not in versions for versions in readers.map(listed, range(8)))


def test_readers_of_large_lists_may_leave(tmp_path: Path) -> None:
    """A reader that stops in the middle of a large answer leaves no memory in use."""
    with running(tmp_path / "data") as program:
        for number in range(10):
            content = {"metadata": {"name": f"large-{number}"}, "data": {"a": "x" * SIZE}}
            program.ask("POST", PATH, content)
        program.ask("GET", PATH)
        before = program.memory()
        for _ in range(30):
            with program.connect() as link:
                link.sendall(program.render("GET", PATH))
                assert link.recv(1000).startswith(b"HTTP/1.1 200")
        assert len(program.ask("GET", PATH)["items"]) >= 10
        assert program.memory() - before < 32 * 1024
