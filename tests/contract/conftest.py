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

import pytest
from tests.contract.embedded import embedded
from tests.contract.recordings import ANSWERS, compare, recorded_answers, write_answers
from tests.contract.talking import Api, Server
from tests.system_guard import starts_programs

SERVERS = ("embedded", pytest.param("real", marks=pytest.mark.real))
_RECORDED: set[Path] = set()
_API = pytest.StashKey[Api]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that records."""
    parser.addoption("--record", action="store_true", help="keep what a real server answers")


@pytest.fixture(scope="session", params=SERVERS)
@starts_programs
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
    api = Api(server, f"c-{secrets.token_hex(4)}")
    meta = {"name": api.ns, "labels": {"contract": api.ns}}
    assert api.create("/api/v1/namespaces", {"metadata": meta}, quiet=True).status == 201
    account = {"metadata": {"name": "default"}}  # a controller may be quicker
    api.create(f"{api.core}/serviceaccounts", account, quiet=True)
    request.node.stash[_API] = api
    try:
        yield api
    finally:
        api.close()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """After a test's own assertions, compare its answers with the recorded ones."""
    outcome = yield
    api = pyfuncitem.stash.get(_API, None)
    if api is None:
        return outcome
    real = pyfuncitem.get_closest_marker("real") is not None
    server = "real" if real else "embedded"
    test = pyfuncitem.name.replace(f"[{server}]", "").replace(f"{server}-", "")
    test = test.replace(f"-{server}", "")
    file = ANSWERS / f"{pyfuncitem.path.stem.removeprefix('test_')}.jsonl"
    current = json.loads(json.dumps(api.notes))
    if real and pyfuncitem.config.getoption("--record", default=False):
        recorded_answers(file)[test] = current
        _RECORDED.add(file)
    recorded = recorded_answers(file).get(test, [])
    different = list(compare(recorded, current))
    if different or len(recorded) != len(current):
        pytest.fail(
            f"{server} differs from the real server; of {len(current)} answers {len(recorded)} were"
            " recorded:\n" + "\n".join(different),
            pytrace=False,
        )
    return outcome


def pytest_sessionfinish() -> None:
    """Write the recorded answers to their files."""
    for file in _RECORDED:
        write_answers(file)
