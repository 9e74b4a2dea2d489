"""The two contestants, set up alike: a namespace, a service account with a role, its token."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.embedded.link import Server
from tools import realkube
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import ClusterConfig, load_config

RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]
START_SECONDS = 60.0


@dataclass(frozen=True)
class Contestant:
    """A server that is ready to be measured, and its processes."""

    name: str
    server: Server

    def memory(self) -> float:
        """MB its processes occupy, what they share counted once."""
        return megabytes(self.server.processes)


def megabytes(processes: Iterable[int]) -> float:
    """What processes occupy, what they share counted once."""
    return sum(_pss(pid) for pid in processes) / 1024


def _pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise LookupError(pid)


@contextmanager
def ours(
    folder: Path, *flags: str, module: Sequence[str] = ("zonewise", "up")
) -> Iterator[tuple[int, Path]]:
    """The embedded API server, or what the flags say; its process and kubeconfig."""
    what = flags or ("--api-only",)
    program = [sys.executable, "-m", *module, *what, "--data", str(folder)]
    with (folder.parent / f"{folder.name}.log").open("w") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log)
    kubeconfig = folder / "kubeconfig"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not kubeconfig.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(Path(log.name).read_text()[-2000:])
            time.sleep(0.005)
        yield process.pid, kubeconfig
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def pair() -> Iterator[tuple[Contestant, Contestant]]:
    """Ours and the real one, both running."""
    with tempfile.TemporaryDirectory(prefix="zonewise-bench-") as name:
        home = Path(name)
        settings = realkube.Settings(controllers=(), scheduler=False, fsync=True)
        with (
            ours(home / "ours") as (pid, kubeconfig),
            realkube.start(settings, folder=home / "real") as plane,
        ):
            real = (plane.apiserver.pid, plane.etcd.pid)
            yield (
                Contestant("ours", prepare(kubeconfig, (pid,))),
                Contestant("real", prepare(plane.kubeconfig, real)),
            )


def prepare(kubeconfig: Path, processes: tuple[int, ...]) -> Server:
    """Make what the load needs and get its token."""
    config = load_config(kubeconfig=kubeconfig)
    url = urlsplit(config.server)
    written = json.loads(kubeconfig.read_text())
    authority = written["clusters"][0]["cluster"]["certificate-authority-data"]
    return Server(
        host=url.hostname or "",
        port=url.port or 443,
        authority=base64.b64decode(authority).decode(),
        token=asyncio.run(_admit(config)),
        processes=processes,
    )


async def _admit(config: ClusterConfig) -> str:
    rights = "/apis/rbac.authorization.k8s.io/v1"
    account = {"kind": "ServiceAccount", "name": "bench", "namespace": "bench"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/api/v1/namespaces", {}),
        ("/api/v1/namespaces/bench/serviceaccounts", {}),
        (f"{rights}/clusterroles", {"rules": RULES}),
        (f"{rights}/clusterrolebindings", {"subjects": [account], "roleRef": role}),
    ]
    async with Client(HttpsTransport(config)) as client:
        for path, content in bodies:
            await _post(client, path, {"metadata": {"name": "bench"}} | content)
        token_request = {"spec": {"expirationSeconds": 36000}}
        answer = await _post(
            client, "/api/v1/namespaces/bench/serviceaccounts/bench/token", token_request
        )
    token: str = answer["status"]["token"]
    return token


async def _post(client: Client, path: str, content: dict[str, Any]) -> dict[str, Any]:
    answer = await client.raw(
        "POST",
        path,
        headers={"Content-Type": "application/json"},
        body=json.dumps(content).encode(),
    )
    document: dict[str, Any] = json.loads(answer.body)
    return document
