"""The load, in a process of its own: ``python -m benchmarks.embedded.load`` reads a job from stdin.

Every task is a closed loop: a connection sends its next request when the last one was answered, a
fan-out the next change when every watcher has seen the last one.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import resource
import select
import ssl
import sys
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.embedded.link import PATIENCE, Link, Server, Taken, ask, drive

SPACE = "/api/v1/namespaces/bench/pods"
VERSION = re.compile(rb'"resourceVersion": ?"(\d+)"')
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Job:
    """One measurement. ``count`` requests (lists, changes) in all; pods are named by ``prefix``."""

    task: str
    connections: int
    count: int
    pods: int
    prefix: str


def pod(name: str) -> bytes:
    """A pod as a Deployment makes it, about 1.5 KB."""
    probe = {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10}
    item: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "bench",
            "labels": {
                "app.kubernetes.io/name": "storefront",
                "app.kubernetes.io/component": "frontend",
                "app.kubernetes.io/part-of": "shop",
                "pod-template-hash": "6d4cf56db6",
                "stamp": "0",
            },
            "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "9100"},
        },
        "spec": {
            "serviceAccountName": "bench",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "storefront",
                    "image": "registry.example.com/shop/storefront:2.14.3",
                    "args": ["--listen=:8080", "--metrics=:9100", "--log-format=json"],
                    "env": [
                        {"name": "REGION", "value": "eu-central"},
                        {"name": "CATALOG_URL", "value": "http://catalog.shop.svc:8080"},
                        {
                            "name": "POD_IP",
                            "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
                        },
                    ],
                    "ports": [
                        {"name": "http", "containerPort": 8080},
                        {"name": "metrics", "containerPort": 9100},
                    ],
                    "readinessProbe": probe,
                    "livenessProbe": {**probe, "periodSeconds": 20},
                    "resources": {
                        "requests": {"cpu": "250m", "memory": "256Mi"},
                        "limits": {"memory": "512Mi"},
                    },
                    "volumeMounts": [{"name": "cache", "mountPath": "/var/cache/shop"}],
                }
            ],
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}}],
            "tolerations": [
                {
                    "key": "example.com/spot",
                    "operator": "Equal",
                    "value": "true",
                    "effect": "NoSchedule",
                }
            ],
        },
    }
    return json.dumps(item, separators=(",", ":")).encode()


def body_of(answer: bytes) -> bytes:
    """The body of an answer, joined from its chunks if it is chunked."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return body
    parts: list[bytes] = []
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            return b"".join(parts)
        parts.append(body[:length])
        body = body[length + 2 :]


def create(server: Server, job: Job) -> Taken:
    """New pods."""
    ready = iter(
        [
            server.request("POST", SPACE, pod(f"{job.prefix}-{number}"))
            for number in range(job.count)
        ]
    )
    return drive(server, job.connections, lambda *_: next(ready, None))


def get(server: Server, job: Job) -> Taken:
    """One pod of many."""
    rng = random.Random(1)
    ready = iter(
        [
            server.request("GET", f"{SPACE}/{job.prefix}-{rng.randrange(job.pods)}")
            for _ in range(job.count)
        ]
    )
    return drive(server, job.connections, lambda *_: next(ready, None))


def list_all(server: Server, job: Job) -> Taken:
    """All pods at once."""
    request = server.request("GET", SPACE)
    left = itertools.repeat(request, job.count)
    return drive(server, job.connections, lambda *_: next(left, None))


def patch(server: Server, job: Job) -> Taken:
    """A label of a pod; every connection has its own pods."""
    stamp = time.time_ns()
    turns = range(job.count // job.connections)
    ready = [
        iter(
            [
                server.request(
                    "PATCH",
                    f"{SPACE}/{job.prefix}-{(link + turn * job.connections) % job.pods}",
                    b'{"metadata":{"labels":{"stamp":"%d"}}}' % (stamp + turn),
                    MERGE,
                )
                for turn in turns
            ]
        )
        for link in range(job.connections)
    ]
    return drive(server, job.connections, lambda link, _: next(ready[link], None))


def put(server: Server, job: Job) -> Taken:
    """A whole pod with one label changed, based on the version before."""
    left = [job.count // job.connections] * job.connections
    paths = [f"{SPACE}/{job.prefix}-{link}" for link in range(job.connections)]
    first = [ask(server, server.request("GET", path)) for path in paths]
    templates = []
    for answer in first:
        item = json.loads(body_of(answer))
        item["metadata"]["resourceVersion"] = "@version@"
        item["metadata"]["labels"]["stamp"] = "@stamp@"
        templates.append(json.dumps(item, separators=(",", ":")).encode())

    def following(link: int, answer: bytes | None) -> bytes | None:
        if not left[link]:
            return None
        left[link] -= 1
        version = VERSION.search(answer or first[link])
        if version is None:
            raise RuntimeError("no version")
        body = templates[link].replace(b"@version@", version[1])
        body = body.replace(b"@stamp@", b"p%d" % time.time_ns())
        return server.request("PUT", paths[link], body)

    return drive(server, job.connections, following)


def fan_out(server: Server, job: Job) -> Taken:
    """One pod changes; each change counts once for every watcher that has seen it."""
    context = server.context()
    path = f"{SPACE}/{job.prefix}-0"
    begin = ask(server, server.request("GET", f"{SPACE}?limit=1"))
    version = VERSION.search(begin)
    if version is None:
        raise RuntimeError("no version")
    request = server.request("GET", f"{SPACE}?watch=1&resourceVersion={version[1].decode()}")
    watchers: dict[int, Link] = {}
    epoll = select.epoll()
    links: list[Link] = []
    taken = Taken()
    try:
        for _ in range(job.connections):
            link = Link(server, context)
            links.append(link)
            link.send(request)
            watchers[link.number] = link
            epoll.register(link.number, select.EPOLLIN)
        # Servers hang up on a connection on which nothing is asked for half a minute.
        writer = Link(server, context)
        links.append(writer)
        epoll.register(writer.number, select.EPOLLIN)
        tails = dict.fromkeys(watchers, b"")
        for turn in range(-2, job.count):
            if turn == 0:  # two turns go before, so that every watch has begun
                taken.latencies.clear()
                start, used = time.perf_counter(), server.cpu()
            mark = b'"stamp":"w%d"' % time.time_ns()
            body = b'{"metadata":{"labels":{%s}}}' % mark
            writer.send(server.request("PATCH", path, body, MERGE))
            waiting = set(watchers)
            answered = False
            while waiting or not answered:
                ready = epoll.poll(PATIENCE)
                if not ready:
                    raise RuntimeError(f"{len(waiting)} watchers wait in vain")
                for descriptor, _ in ready:
                    if descriptor == writer.number:
                        answered = writer.receive() is not None or answered
                    elif _seen(watchers[descriptor], tails, mark):
                        waiting.discard(descriptor)
                        taken.latencies.append(time.perf_counter() - writer.sent_at)
        taken.seconds = time.perf_counter() - start
        taken.cpu = server.cpu() - used
    finally:
        for link in links:
            link.close()
        epoll.close()
    return taken


def _seen(link: Link, tails: dict[int, bytes], mark: bytes) -> bool:
    seen = False
    while True:
        try:
            data = tails[link.number] + link.socket.recv(65536)
        except ssl.SSLWantReadError:
            return seen
        seen = seen or mark in data
        tails[link.number] = data[-64:]
        if not link.socket.pending():
            return seen


TASKS = {
    "create": create,
    "get": get,
    "list": list_all,
    "patch": patch,
    "put": put,
    "watch": fan_out,
}


def main() -> None:
    """Do the job, print what was measured."""
    question = json.load(sys.stdin)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    job = Job(**question["job"])
    taken = TASKS[job.task](Server(**question["server"]), job)
    taken.latencies.sort()
    size = len(taken.latencies)
    json.dump(
        {
            "count": size,
            "rate": size / taken.seconds,
            "p50": taken.latencies[size // 2] * 1000,
            "p99": taken.latencies[min(size * 99 // 100, size - 1)] * 1000,
            "cpu": taken.cpu / size * 1e6,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
