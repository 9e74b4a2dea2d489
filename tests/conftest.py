"""What tests of several packages share.

The real control planes are one per test session, which under xdist means one per worker: each has
its own folder and its own ports, so workers never meet. Tests that share one keep apart by
namespace. They are never built here: a build takes minutes and belongs before the tests.

A test that starts a program or needs root is marked ``system``, and ``system_guard`` checks that.

Properties try the same examples in every run, without a deadline: no test depends on luck or on
time. `pytest --hypothesis-profile=explore` looks for new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import system_guard

from tools import realkube as real
from zonewise.runtime.process import logs

SLOW = [HealthCheck.too_slow]
settings.register_profile(
    "zonewise", deadline=None, suppress_health_check=SLOW, print_blob=True, derandomize=True
)
settings.register_profile(
    "explore", deadline=None, suppress_health_check=SLOW, print_blob=True, max_examples=2000
)
settings.load_profile("zonewise")


def pytest_sessionstart() -> None:
    """Set the event loop to None; pytest-asyncio asks, and Python 3.11 would make one."""
    asyncio.set_event_loop(None)
    system_guard.listen()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests whose fixtures start programs."""
    system_guard.mark_users(items)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, object, object]:
    """Remember which fixtures start programs."""
    with system_guard.fixture_set_up(fixturedef):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test use its own process only, unless it is marked."""
    with system_guard.only_its_own_process(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that is not marked and started a program."""
    outcome = yield
    system_guard.check(item)
    return outcome


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Reset logging: a command that runs in this process configures it."""
    before = logs._setup.number
    yield
    if logs._setup.number != before:
        logs.configure()


@pytest.fixture(scope="session")
def real_binaries() -> real.Binaries:
    """The programs of real Kubernetes, built before the tests started."""
    binaries = real.find()
    if binaries is None:
        pytest.fail("Kubernetes is not built; `make e2e` or `python -m tools.realkube build` does.")
    return binaries


@pytest.fixture(scope="session")
def realkube(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A whole real control plane: etcd, API server, controller manager, scheduler."""
    with real.start(real.Settings(fsync=False), binaries=real_binaries) as plane:
        yield plane


@pytest.fixture(scope="session")
def realapi(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """Only etcd and the API server: nothing in it changes objects by itself."""
    settings = real.Settings(controllers=(), scheduler=False, fsync=False)
    with real.start(settings, binaries=real_binaries) as plane:
        yield plane
