"""Lives of a Service: the same events for both contestants, as plain Kubernetes objects.

Events are what clusters do: a rolling update (a new pod, then an old one less), scaling up and
down, pods that flip their readiness, nodes that are lost with their pods and nodes that come.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Obj = dict[str, Any]
ZONES = ("a", "b", "c", "d", "e")
MOMENT = "2026-01-02T03:04:05Z"


@dataclass(slots=True)
class Step:
    """One event: pods that come or change, pods that go, all nodes if one of them changed."""

    put: list[Obj] = field(default_factory=list)
    drop: list[str] = field(default_factory=list)
    nodes: list[Obj] | None = None


def service(*, auto: bool, named_ports: bool = False) -> Obj:
    """A Service with one port."""
    mode = {"service.kubernetes.io/topology-mode": "Auto"} if auto else {}
    return {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "web-1",
            "annotations": mode,
            "labels": {"team": "shop"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {
            "selector": {"app": "web"},
            "clusterIP": "10.0.0.1",
            "ipFamilies": ["IPv4"],
            "ports": [
                {
                    "name": "http",
                    "protocol": "TCP",
                    "port": 80,
                    "targetPort": "web" if named_ports else 8080,
                }
            ],
        },
    }


def node(name: str, zone: str, milli: int = 4000) -> Obj:
    """A Ready node."""
    return {
        "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
        "status": {
            "allocatable": {"cpu": f"{milli}m"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(number: int, host: str, *, ready: bool = True, version: int = 0) -> Obj:
    """A running pod."""
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    return {
        "metadata": {
            "name": f"web-{number:06}",
            "namespace": "default",
            "uid": f"pod-{number}",
            "resourceVersion": str(version),
            "labels": {"app": "web"},
        },
        "spec": {
            "nodeName": host,
            "containers": [
                {
                    "name": "web",
                    "image": "web",
                    "ports": [{"name": "web", "containerPort": 8080, "protocol": "TCP"}],
                }
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                {"type": "Ready", "status": str(ready), "lastTransitionTime": MOMENT},
                {"type": "ContainersReady", "status": str(ready), "lastTransitionTime": MOMENT},
            ],
        },
    }


class Life:
    """A Service that lives; ``steps`` gives its events."""

    def __init__(self, seed: int, *, pods: int, zones: int = 3, nodes_per_zone: int = 6) -> None:
        self._rng = random.Random(seed)
        self._next = 0
        self._pods: dict[int, tuple[str, bool]] = {}
        self._nodes = {
            f"{zone}{number}": (zone, self._rng.choice((2000, 4000, 4000, 8000)))
            for zone in ZONES[:zones]
            for number in range(nodes_per_zone)
        }
        self._spare = 0
        self._start = pods

    def _new(self) -> Obj:
        number, self._next = self._next, self._next + 1
        host = self._rng.choice(sorted(self._nodes))
        self._pods[number] = (host, True)
        return pod(number, host)

    def _gone(self, numbers: list[int]) -> list[str]:
        for number in numbers:
            del self._pods[number]
        return [f"web-{number:06}" for number in numbers]

    def _manifests(self) -> list[Obj]:
        return [node(name, zone, milli) for name, (zone, milli) in sorted(self._nodes.items())]

    def steps(self, count: int) -> Iterator[Step]:
        """The first state, then so many events."""
        yield Step(put=[self._new() for _ in range(self._start)], nodes=self._manifests())
        steps_done = 0
        while steps_done < count:
            kind = self._rng.random()
            for event in (
                self._rollout()
                if kind < 0.05
                else self._scale()
                if kind < 0.15
                else self._node()
                if kind < 0.25
                else self._flip()
            ):
                yield event
                steps_done += 1

    def _rollout(self) -> Iterator[Step]:
        old = sorted(self._pods)
        wave = max(1, len(old) // 10)
        for begin in range(0, len(old), wave):
            yield Step(put=[self._new() for _ in range(wave)])
            yield Step(drop=self._gone(old[begin : begin + wave]))

    def _scale(self) -> Iterator[Step]:
        amount = self._rng.randint(1, max(2, len(self._pods) // 5))
        if self._rng.random() < 0.5 or len(self._pods) < self._start // 2:
            yield Step(put=[self._new() for _ in range(amount)])
        else:
            yield Step(drop=self._gone(self._rng.sample(sorted(self._pods), amount)))

    def _flip(self) -> Iterator[Step]:
        number = self._rng.choice(sorted(self._pods))
        host, ready = self._pods[number]
        self._pods[number] = (host, not ready)
        yield Step(put=[pod(number, host, ready=not ready, version=1 + ready)])

    def _node(self) -> Iterator[Step]:
        if len(self._nodes) > 8 and self._rng.random() < 0.5:
            lost = self._rng.choice(sorted(self._nodes))
            del self._nodes[lost]
            yield Step(
                drop=self._gone([n for n, (host, _) in self._pods.items() if host == lost]),
                nodes=self._manifests(),
            )
        else:
            self._spare += 1
            zone = self._rng.choice(sorted({zone for zone, _ in self._nodes.values()}))
            self._nodes[f"{zone}x{self._spare}"] = (zone, 4000)
            yield Step(nodes=self._manifests())


def one_pod(seed: int, *, pods: int, changes: int) -> Iterator[Step]:
    """A Service of a fixed size in which one pod after the other flips its readiness."""
    rng = random.Random(seed)
    hosts = [f"{zone}{number}" for zone in ZONES for number in range(10)]
    states = [(hosts[number % len(hosts)], True) for number in range(pods)]
    yield Step(
        put=[pod(number, host) for number, (host, _) in enumerate(states)],
        nodes=[node(host, host[0]) for host in hosts],
    )
    for version in range(1, changes + 1):
        number = rng.randrange(pods)
        host, ready = states[number]
        states[number] = (host, not ready)
        yield Step(put=[pod(number, host, ready=not ready, version=version)])
