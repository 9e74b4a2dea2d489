"""One contestant per process: ``python -m benchmarks.runtime.clients NAME TASK URL``.

Every contestant does the same: read all EndpointSlices into a dictionary by key and index them by
Service and by node; or follow a watch and keep that dictionary up to date. Each is written as its
documentation suggests and runs with its own defaults.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

REPEATS = 4
PATIENCE = 5.0
"""Contestants that took this long are not asked to repeat."""
SECONDS = 3.0
SERVICE = "kubernetes.io/service-name"
START = "1000000000"


def memory(field: str) -> float:
    """A line of this process's status, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)


@dataclass
class Measured:
    """How many events, in how many seconds of the clock and of this process's CPU."""

    events: int
    seconds: float
    cpu: float


class Meter:
    """Counts events after the first, until the time is over."""

    def __init__(self) -> None:
        self.count = -1
        self.begin = 0.0
        self.busy = 0.0
        self.objects: dict[tuple[str, str], Any] = {}

    def over(self, namespace: str, name: str, item: Any) -> bool:
        self.objects[namespace, name] = item
        self.count += 1
        if self.count == 0:
            self.start()
        return self.count % 20 == 0 and time.perf_counter() - self.begin > SECONDS

    def start(self) -> None:
        self.begin, self.busy = time.perf_counter(), time.process_time()

    def result(self) -> Measured:
        seconds = time.perf_counter() - self.begin
        return Measured(self.count, seconds, time.process_time() - self.busy)


def indexed(items: Iterable[Any], node: Callable[[Any], str]) -> object:
    """Objects by key, Service and node, for libraries that have no store."""
    objects: dict[tuple[str, str], Any] = {}
    services: dict[str, list[Any]] = defaultdict(list)
    nodes: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        objects[item.metadata.namespace, item.metadata.name] = item
        services[item.metadata.labels[SERVICE]].append(item)
        for name in {node(endpoint) for endpoint in item.endpoints}:
            nodes[name].append(item)
    assert len(objects) == 1000
    return objects, services, nodes


class Filled:
    """Hides a result: Python 3.11 takes the ``repr`` of what ``asyncio.run`` returns."""

    def __init__(self, value: object) -> None:
        self.value = value


def finished(work: Coroutine[Any, Any, Filled]) -> object:
    return asyncio.run(work).value


class Contestant(Protocol):
    """What each library is asked to do."""

    def fill(self) -> object:
        """List and index; gives what has to be kept."""
        ...

    def follow(self, endpoints: int) -> Measured:
        """Follow a watch for a while."""
        ...


class Zonewise:
    """A reflector that fills a store with the fields a proxy reads."""

    compact = False

    def __init__(self, url: str) -> None:
        from benchmarks.runtime import ours

        self.url = url
        self.ours = ours
        self.cls: Any = ours.Backends

    def fill(self) -> object:
        return finished(self._fill())

    def follow(self, endpoints: int) -> Measured:
        work = self.ours.follow(self.url, self.cls, endpoints, compact=self.compact)
        return asyncio.run(work)

    async def _fill(self) -> Filled:
        return Filled(await self.ours.fill(self.url, self.cls, compact=self.compact))


class ZonewiseCompact(Zonewise):
    """The same with a compact store."""

    compact = True


class ZonewiseWhole(Zonewise):
    """The same with every field of the EndpointSlices."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.cls = self.ours.EndpointSlice


def lightkube_config(url: str) -> Any:
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.config.models import Cluster, User

    return KubeConfig.from_one(cluster=Cluster(server=url), user=User())


class Lightkube:
    """lightkube's blocking client."""

    def __init__(self, url: str) -> None:
        import lightkube

        self.client: Any = lightkube.Client(config=lightkube_config(url), trust_env=False)

    def fill(self) -> object:
        from lightkube.resources.discovery_v1 import EndpointSlice

        return indexed(self.client.list(EndpointSlice, namespace="*"), lambda e: str(e.nodeName))

    def follow(self, endpoints: int) -> Measured:
        from lightkube.resources.discovery_v1 import EndpointSlice

        meter = Meter()
        stream: Iterator[Any] = self.client.watch(
            EndpointSlice,
            namespace="*",
            labels={"endpoints": str(endpoints)},
            resource_version=START,
        )
        for _, item in stream:
            if meter.over(item.metadata.namespace, item.metadata.name, item):
                break
        return meter.result()


class LightkubeAsync:
    """lightkube's asynchronous client."""

    def __init__(self, url: str) -> None:
        self.url = url

    def fill(self) -> object:
        return finished(self._fill())

    def follow(self, endpoints: int) -> Measured:
        return asyncio.run(self._follow(endpoints))

    def _client(self) -> Any:
        import lightkube

        return lightkube.AsyncClient(config=lightkube_config(self.url), trust_env=False)

    async def _fill(self) -> Filled:
        from lightkube.resources.discovery_v1 import EndpointSlice

        items: AsyncIterator[Any] = self._client().list(EndpointSlice, namespace="*")
        return Filled(indexed([item async for item in items], lambda e: str(e.nodeName)))

    async def _follow(self, endpoints: int) -> Measured:
        from lightkube.resources.discovery_v1 import EndpointSlice

        meter = Meter()
        stream: AsyncIterator[Any] = self._client().watch(
            EndpointSlice,
            namespace="*",
            labels={"endpoints": str(endpoints)},
            resource_version=START,
        )
        async for _, item in stream:
            if meter.over(item.metadata.namespace, item.metadata.name, item):
                break
        return meter.result()


class Official:
    """The official client, with its models."""

    models = True

    def __init__(self, url: str) -> None:
        from kubernetes import client, watch

        configuration = client.Configuration()
        configuration.host = url
        self.api: Any = client.DiscoveryV1Api(client.ApiClient(configuration))
        self.watch: Any = watch

    def fill(self) -> object:
        listing = self.api.list_endpoint_slice_for_all_namespaces()
        return indexed(listing.items, lambda e: str(e.node_name))

    def follow(self, endpoints: int) -> Measured:
        meter = Meter()
        stream = self.watch.Watch().stream(
            self.api.list_endpoint_slice_for_all_namespaces,
            label_selector=f"endpoints={endpoints}",
            resource_version=START,
            deserialize=self.models,
        )
        for event in stream:
            if self.over(meter, event["object"]):
                break
        return meter.result()

    def over(self, meter: Meter, item: Any) -> bool:
        return meter.over(item.metadata.namespace, item.metadata.name, item)


class OfficialDicts(Official):
    """The official client without its models: dictionaries of the standard library's JSON."""

    models = False

    def fill(self) -> object:
        answer = self.api.list_endpoint_slice_for_all_namespaces(_preload_content=False)
        objects: dict[tuple[str, str], Any] = {}
        services: dict[str, list[Any]] = defaultdict(list)
        nodes: dict[str, list[Any]] = defaultdict(list)
        for item in json.loads(answer.data)["items"]:
            objects[item["metadata"]["namespace"], item["metadata"]["name"]] = item
            services[item["metadata"]["labels"][SERVICE]].append(item)
            for name in {endpoint["nodeName"] for endpoint in item["endpoints"]}:
                nodes[name].append(item)
        assert len(objects) == 1000
        return objects, services, nodes

    def over(self, meter: Meter, item: Any) -> bool:
        return meter.over(item["metadata"]["namespace"], item["metadata"]["name"], item)


class KubernetesAsyncio:
    """kubernetes_asyncio, with its models."""

    def __init__(self, url: str) -> None:
        from kubernetes_asyncio import client, watch

        self.configuration: Any = client.Configuration()
        self.configuration.host = url
        self.client: Any = client
        self.watch: Any = watch

    def fill(self) -> object:
        return finished(self._fill())

    def follow(self, endpoints: int) -> Measured:
        return asyncio.run(self._follow(endpoints))

    async def _fill(self) -> Filled:
        async with self.client.ApiClient(self.configuration) as connection:
            api = self.client.DiscoveryV1Api(connection)
            listing = await api.list_endpoint_slice_for_all_namespaces()
            return Filled(indexed(listing.items, lambda e: str(e.node_name)))

    async def _follow(self, endpoints: int) -> Measured:
        meter = Meter()
        async with self.client.ApiClient(self.configuration) as connection:
            api = self.client.DiscoveryV1Api(connection)
            async with self.watch.Watch() as watching:
                stream = watching.stream(
                    api.list_endpoint_slice_for_all_namespaces,
                    label_selector=f"endpoints={endpoints}",
                    resource_version=START,
                )
                async for event in stream:
                    item = event["object"]
                    if meter.over(item.metadata.namespace, item.metadata.name, item):
                        break
            return meter.result()


CONTESTANTS: dict[str, Callable[[str], Contestant]] = {
    "zonewise": Zonewise,
    "zonewise, compact": ZonewiseCompact,
    "zonewise, whole": ZonewiseWhole,
    "lightkube": Lightkube,
    "lightkube async": LightkubeAsync,
    "kubernetes": Official,
    "kubernetes, dicts": OfficialDicts,
    "kubernetes_asyncio": KubernetesAsyncio,
}


def fill(contestant: Contestant) -> dict[str, Any]:
    """Times of several runs; memory of the first, over what the process needs to start."""
    gc.collect()
    before = memory("VmRSS")
    times: list[float] = []
    cpu: list[float] = []
    result: dict[str, Any] = {"times": times, "cpu": cpu}
    filled: object = None
    for turn in range(REPEATS):
        filled = None
        begin, busy = time.perf_counter(), time.process_time()
        filled = contestant.fill()
        times.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - busy)
        if turn == 0:
            result["peak"] = memory("VmHWM") - before
            gc.collect()
            result["held"] = memory("VmRSS") - before
        if sum(times) > PATIENCE:
            break
    del filled
    return result


def main() -> None:
    """Do one task and print what was measured as JSON."""
    name, task, url = sys.argv[1:4]
    contestant = CONTESTANTS[name](url)
    result = fill(contestant) if task == "list" else asdict(contestant.follow(int(task)))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
