"""The same tests for the embedded API server and for a real one.

Each test talks to one server through ``api``. What the server said is compared, after the test's
own assertions, with what a real one said when it was last asked: ``answers/`` holds that, one line
per question. ``pytest -m real tests/contract --record`` writes it anew, so the answers are never
typed by hand; ``make e2e`` proves them current.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.embedded import embedded
from tests.contract.talking import Api, Server

ANSWERS = Path(__file__).parent / "answers"
SERVERS = ("embedded", pytest.param("real", marks=pytest.mark.real))
_RECORDED: set[Path] = set()
_BOOK: dict[str, dict[str, list[Any]]] = {}
_API = pytest.StashKey[Api]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Say how to record."""
    parser.addoption("--record", action="store_true", help="keep what a real server answers")


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """An API server, ours or a real one."""
    if request.param == "real":
        yield Server(request.getfixturevalue("realapi").kubeconfig)
        return
    with embedded() as kubeconfig:
        yield Server(kubeconfig)


@pytest.fixture
def api(server: Server, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A client with a namespace of its own."""
    one = Api(server, f"c-{secrets.token_hex(4)}")
    meta = {"name": one.ns, "labels": {"contract": one.ns}}
    assert one.create("/api/v1/namespaces", {"metadata": meta}, quiet=True).status == 201
    account = {"metadata": {"name": "default"}}  # a controller may be quicker
    one.create(f"{one.core}/serviceaccounts", account, quiet=True)
    request.node.stash[_API] = one
    try:
        yield one
    finally:
        one.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """After a test's own assertions, compare the notebook."""
    outcome = yield
    api = pyfuncitem.stash.get(_API, None)
    if api is None:
        return outcome
    real = pyfuncitem.get_closest_marker("real") is not None
    server = "real" if real else "embedded"
    test = pyfuncitem.name.replace(f"[{server}]", "").replace(f"{server}-", "")
    test = test.replace(f"-{server}", "")
    file = ANSWERS / f"{pyfuncitem.path.stem.removeprefix('test_')}.jsonl"
    said = json.loads(json.dumps(api.notes))
    if real and pyfuncitem.config.getoption("--record", default=False):
        _book(file)[test] = said
        _RECORDED.add(file)
    recorded = _book(file).get(test, [])
    different = [
        line
        for (asked, want), (_, got) in zip(recorded, said, strict=False)
        if want != got and not _worked_on(want, got)
        for line in (asked, *_differences(want, got, ""))
    ]
    if different or len(recorded) != len(said):
        pytest.fail(
            f"{server} is not what a real server was; of {len(said)} questions {len(recorded)} were"
            " recorded:\n" + "\n".join(different),
            pytrace=False,
        )
    return outcome


def _worked_on(want: Any, got: Any) -> bool:
    """Whether all that differs is a version of a Namespace that a controller empties meanwhile."""
    if not (isinstance(want, dict) and isinstance(got, dict)):
        return False
    obj = got.get("object") or {}
    ends = obj.get("kind") == "Namespace" and "deletionTimestamp" in obj["metadata"]
    known = {want.get("version"), got.get("version")} <= {"same", "newer"}
    return ends and known and {**want, "version": ""} == {**got, "version": ""}


def _differences(want: Any, got: Any, at: str) -> Iterator[str]:
    if isinstance(want, dict) and isinstance(got, dict):
        for key in sorted({*want, *got}):
            yield from _differences(want.get(key), got.get(key), f"{at}/{key}")
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for index, (one, other) in enumerate(zip(want, got, strict=True)):
            yield from _differences(one, other, f"{at}/{index}")
    elif want != got:
        yield f"    {at}: {json.dumps(want)} on a real server, here {json.dumps(got)}"


def _book(file: Path) -> dict[str, list[Any]]:
    book = _BOOK.get(file.name)
    if book is None:
        book = _BOOK[file.name] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            test, asked, answered = json.loads(line)
            book.setdefault(test, []).append([asked, answered])
    return book


def pytest_sessionfinish() -> None:
    """Write down what was recorded."""
    for file in _RECORDED:
        book = _book(file)
        with file.open("w") as out:
            for name in sorted(book):
                for asked, answered in book[name]:
                    out.write(json.dumps([name, asked, answered], sort_keys=True) + "\n")
