"""A replica that stands for election and writes as our controllers do, as a process of its own.

Its controller patches every ConfigMap of a namespace again and again, always with the version it
has read. On SIGUSR1 the process stops itself (SIGSTOP) at the worst moment: right before the first
fence check of its next write, or right after the last check, made with the connection at hand, has
passed. It prints its state, one word per line: ``leading``, ``lost``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from weakref import WeakKeyDictionary

from zonewise.api.errors import LeadershipLost
from zonewise.api.meta import Key
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.cache.cache import Cache
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config
from zonewise.runtime.controller.controller import Controller, own_key
from zonewise.runtime.election.deadman import Deadman
from zonewise.runtime.election.election import Election, LeaseTiming
from zonewise.runtime.process.process import Process, run

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))
LEASE = "zonewise-test"
TIMING = LeaseTiming(duration=3, margin=1.0, stop=0.4, renew=0.5, retry=0.2)


class Candidate:
    """One replica."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stop_at = ""
        self.checked_once: WeakKeyDictionary[asyncio.Task[object], bool] = WeakKeyDictionary()
        transport = HttpsTransport(load_config(options.kubeconfig))
        self.election = Election(
            Client(transport, retries=0),
            name=LEASE,
            namespace=options.namespace,
            identity=options.identity,
            timing=TIMING,
            deadman=None if options.no_deadman else Deadman(),
        )
        self.client = Client(transport, fence=self.fence)

    def fence(self) -> None:
        # Every write is checked twice: before it looks for a connection, and when it has one.
        task = asyncio.current_task()
        assert task is not None
        last = self.checked_once.get(task, False)
        self.checked_once[task] = not last
        if self.stop_at == "before" and not last:
            self.stop()
        self.election.fence()
        if self.stop_at == "after" and last:
            self.stop()

    def stop(self) -> None:
        self.stop_at = ""
        os.kill(os.getpid(), signal.SIGSTOP)

    def arm(self) -> None:
        self.stop_at = self.options.stop_at

    async def lead(self) -> None:
        say("leading")
        cache = Cache(self.client)
        controller = Controller[Key]("candidate", self.reconcile, cache=cache, workers=4)
        self.maps = controller.watches(ConfigMap, own_key, namespace=self.options.namespace)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(cache.run())
            await controller.run()
            reading.cancel()

    async def reconcile(self, key: Key) -> float | None:
        config_map = self.maps.get(key)
        if config_map is None or not config_map.metadata.name.startswith("work-"):
            return None
        patch = {
            "metadata": {"resourceVersion": config_map.metadata.resource_version},
            "data": {
                "by": self.options.identity,
                "n": str(int(config_map.get("data", "n") or 0) + 1),
            },
        }
        await self.client.patch(ConfigMap, key[1], key[0], patch)
        return 0.01

    async def main(self, process: Process) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.arm)
        async with self.client:
            try:
                await process.until_stop(self.election.run(self.lead))
            except* LeadershipLost:
                say("lost")


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kubeconfig")
    parser.add_argument("namespace")
    parser.add_argument("identity")
    parser.add_argument("--no-deadman", action="store_true")
    parser.add_argument("--stop-at", choices=["before", "after"], default="before")
    sys.exit(run(Candidate(parser.parse_args()).main))
