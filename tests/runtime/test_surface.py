"""The public names of the package, and what it imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zonewise import runtime

NAMES = [
    "AdmissionRequest",
    "Allowed",
    "RequestResult",
    "Cache",
    "Certificates",
    "Client",
    "ClusterConfig",
    "Controller",
    "ControllerContext",
    "Deadman",
    "Denied",
    "AdmissionDispatcher",
    "Election",
    "Health",
    "HttpsTransport",
    "LeaseSettings",
    "LeaseTiming",
    "Limiter",
    "Listing",
    "Metrics",
    "Monitor",
    "Process",
    "Program",
    "ProgramSettings",
    "Queue",
    "Recorder",
    "Reflector",
    "Request",
    "Response",
    "ServerContext",
    "Snapshot",
    "Store",
    "Transport",
    "Version",
    "WatchEvent",
    "WatchOptions",
    "WatchStats",
    "WebhookServer",
    "configure",
    "freeze_heap",
    "in_cluster_config",
    "load_config",
    "logger",
    "own_key",
    "run",
    "run_program",
    "serve",
]


def test_the_public_names_are_these() -> None:
    """Adding or taking away a public name is a decision, not an accident."""
    assert dir(runtime) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    """Each public name is defined in a module of the package and has a docstring."""
    exported = getattr(runtime, name)
    assert exported.__module__.startswith("zonewise.runtime.")
    assert exported.__doc__


def test_other_names_are_not() -> None:
    """A name that is not public raises an AttributeError that says so."""
    name = "Frobnicator"
    with pytest.raises(AttributeError, match=name):
        getattr(runtime, name)


@pytest.mark.system
def test_importing_the_package_loads_no_http_library() -> None:
    """A command that does not talk to a cluster does not import aiohttp."""
    code = (
        "import sys, zonewise.runtime.cache.snapshot, zonewise.runtime.controller.queue\n"
        "print(*sorted({'aiohttp', 'structlog', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
