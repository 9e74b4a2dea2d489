"""Every form of ``zonewise install`` applies to real Kubernetes, and its policies compile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tools import realkube as real

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

PATIENCE = 60.0
FORMS = {
    "observe": (),
    "own": ("--endpointslices", "own", "--dns", "--dashboard", "--alerts", "configmap"),
    "adopt": ("--endpointslices", "adopt", "--webhook-client-ca", "configmap/api-servers"),
    "enforce": (
        *("--budgets", "enforce", "--gated-user", 'o\'brien "x" \\'),
        *("--webhook-from", "10.0.0.0/28", "--metrics-from", "monitoring"),
    ),
    "proxy": ("--proxy", "--cluster-cidr", "10.244.0.0/16"),
    "csi": ("--csi",),
}


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    """A control plane on which nothing else is installed."""
    with real.start(real.Settings(fsync=False), binaries=real_binaries) as started:
        yield started


@pytest.mark.parametrize("form", FORMS)
async def test_what_is_printed_applies(plane: real.ControlPlane, form: str) -> None:
    """kubectl applies what ``install`` prints without a warning, and the server finds nothing wrong
    in its policies.
    """
    namespace = f"printed-{form}"
    command = [sys.executable, "-m", "zonewise", "install", "-n", namespace, *FORMS[form]]
    printed = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, check=True, text=True
    )
    try:
        applied = await asyncio.to_thread(plane.kubectl, "apply", "-f", "-", stdin=printed.stdout)
        assert applied.stderr == ""
        names = [
            line.split(" ")[0]
            for line in applied.stdout.splitlines()
            if line.startswith("validatingadmissionpolicy.")
        ]
        assert bool(names) == (form != "proxy")
        for name in names:
            status = await asyncio.to_thread(checked, plane, name)
            assert status.get("typeChecking", {}) == {}, name
    finally:
        # Do not wait for the namespace: its end may take as long as the slowest of its retries.
        gone = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
        await asyncio.to_thread(plane.kubectl, *gone, stdin=printed.stdout)


def checked(plane: real.ControlPlane, name: str) -> dict[str, Any]:
    """The status of a policy, once its expressions were type-checked."""
    deadline = time.monotonic() + PATIENCE
    while True:
        output = plane.kubectl("get", name, "-o", "json")
        policy: dict[str, Any] = json.loads(output.stdout)
        status: dict[str, Any] = policy.get("status") or {}
        if status.get("observedGeneration") == policy["metadata"]["generation"]:
            return status
        assert time.monotonic() < deadline, f"{name} was not checked"
        time.sleep(0.1)
