"""The election against a real API server, with two witnesses: its audit log and a watch.

Every process has a user of its own, so the audit log says who wrote. Writes are put in the order of
the resourceVersions the server gave them, which is the order in which etcd accepted them. The audit
log may call a write failed whose sender vanished while etcd had it; the watch, by kubectl, shows
what really happened to the objects.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.kubernetes.candidate import TIMING

from tools import realkube as real
from zonewise.api.values.times import parse
from zonewise.runtime.election.deadman import EXIT_CODE

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

OBJECTS = 40
ROUNDS = 4
WRITES = ["create", "update", "patch", "delete"]
AUDIT = (
    {
        "level": "RequestResponse",
        "verbs": WRITES,
        "resources": [{"group": "", "resources": ["configmaps"]}],
    },
    {"level": "None"},
)


@pytest.fixture(scope="module")
def plane(real_binaries: real.Binaries) -> Iterator[real.ControlPlane]:
    settings = real.Settings(controllers=(), scheduler=False, fsync=False, audit=AUDIT)
    with real.start(settings, binaries=real_binaries) as running:
        yield running


class Replica:
    """One candidate process."""

    def __init__(self, contest: Contest, *options: str) -> None:
        self.user = f"{contest.namespace}-{next(contest.numbers)}"
        kubeconfig = contest.plane.kubeconfig_for(self.user, ["system:masters"])
        self.output = Path(contest.plane.folder / f"{self.user}.out")
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.kubernetes.candidate"),
                    *(str(kubeconfig), contest.namespace, self.user, *options),
                ],
                stdout=out,
            )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def printed(self, word: str) -> bool:
        return word in self.output.read_text().split()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal."""
        state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state == "T"


class Contest:
    """Several candidates for one lease, in a namespace of their own."""

    def __init__(self, plane: real.ControlPlane, namespace: str) -> None:
        self.plane = plane
        self.namespace = namespace
        self.numbers = itertools.count(1)
        self.replicas: list[Replica] = []
        self._send("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for number in range(OBJECTS):
            body = {"metadata": {"name": f"work-{number}"}, "data": {"n": "0"}}
            self._send("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
        columns = "jsonpath={.metadata.resourceVersion} {.data.by}{'\\n'}"
        self.history = plane.folder / f"{namespace}.history"
        with self.history.open("w") as out:
            self._watch = subprocess.Popen(
                [
                    *(plane.binaries.path("kubectl"), "get", "configmaps", "-w", "-o", columns),
                    *("-n", namespace, "--kubeconfig", plane.kubeconfig),
                ],
                stdout=out,
            )

    def start(self, *options: str) -> Replica:
        replica = Replica(self, *options)
        self.replicas.append(replica)
        return replica

    def close(self) -> None:
        self._end()
        self._watch.kill()
        self._watch.wait()

    def _end(self) -> None:
        for replica in self.replicas:
            if replica.running:
                replica.process.kill()
            replica.process.wait()

    def ready(self, *options: str) -> tuple[Replica, Replica]:
        """A leader that has written every object, and a follower; starts missing replicas."""
        for replica in [replica for replica in self.replicas if not replica.running]:
            self.replicas.remove(replica)
        while len(self.replicas) < 2:
            self.start(*options)

        def leader_and_follower() -> tuple[Replica, Replica] | None:
            assert all(replica.running for replica in self.replicas), (
                "a candidate lost the lease by itself"
            )
            writers = {item["data"].get("by") for item in self.objects()}
            leaders = [replica for replica in self.replicas if writers == {replica.user}]
            followers = [replica for replica in self.replicas if replica not in leaders]
            return (leaders[0], followers[0]) if leaders else None

        return until(leader_and_follower)

    def taken_over(self, new: Replica, *, objects: int = OBJECTS) -> None:
        """Wait until a replica has written so many of the objects."""
        until(lambda: sum(i["data"].get("by") == new.user for i in self.objects()) >= objects)

    def objects(self) -> list[dict[str, Any]]:
        listing = self._send("GET", f"/api/v1/namespaces/{self.namespace}/configmaps")
        return [item for item in listing["items"] if item["metadata"]["name"].startswith("work-")]

    def accepted(self) -> list[str]:
        """The writers in the order in which etcd accepted their writes, by the audit log."""
        return [
            entry["user"]["username"]
            for entry in sorted(self._audited(), key=_version)
            if entry["responseStatus"]["code"] < 300
        ]

    def answers(self, replica: Replica, *, after: datetime) -> list[int]:
        """The server's answers to a replica's writes that reached it after a time."""
        return [
            entry["responseStatus"]["code"]
            for entry in self._audited()
            if entry["user"]["username"] == replica.user
            and parse(entry["requestReceivedTimestamp"]) > after
        ]

    def watched(self) -> list[str]:
        """The writers by the watch, once it has seen the last write."""
        newest = max(int(item["metadata"]["resourceVersion"]) for item in self.objects())

        def complete() -> list[list[str]] | None:
            lines = [line.split() for line in self.history.read_text().splitlines()]
            return lines if any(int(line[0]) >= newest for line in lines) else None

        return [line[1] for line in until(complete) if len(line) > 1]

    def check(self) -> None:
        """No replica wrote after the first write of the next one."""
        self._end()
        for writers in (self.watched(), self.accepted()):
            runs = [user for user, _ in itertools.groupby(writers)]
            assert len(writers) > len(runs) > 1
            assert len(runs) == len(set(runs)), runs

    def _audited(self) -> list[dict[str, Any]]:
        return [
            entry
            for entry in self.plane.audited()
            if entry["stage"] == "ResponseComplete"
            and entry["objectRef"].get("namespace") == self.namespace
            and entry["user"]["username"].startswith(self.namespace)
        ]

    def _send(self, method: str, path: str, body: object = None) -> Any:
        code, answer = self.plane.request(method, path, body)
        assert code < 300, answer
        return json.loads(answer)


def _version(entry: dict[str, Any]) -> int:
    metadata = entry.get("responseObject", {}).get("metadata", {})
    return int(metadata.get("resourceVersion", 0))


V = TypeVar("V")


def until(condition: Callable[[], V | None], *, seconds: float = 60.0) -> V:
    """Wait for a condition; its value."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)
    return value


def _passed(moment: float) -> bool:
    return time.monotonic() >= moment


@pytest.fixture
def contest(plane: real.ControlPlane, request: pytest.FixtureRequest) -> Iterator[Contest]:
    running = Contest(plane, f"t{abs(hash(request.node.name)) % 10**8}")
    try:
        yield running
    finally:
        running.close()


def test_a_killed_leader_is_replaced_and_never_writes_again(contest: Contest) -> None:
    """After kill -9 of the leader the other replica takes over, round after round."""
    for _ in range(ROUNDS):
        leader, follower = contest.ready()
        leader.signal(signal.SIGKILL)
        contest.taken_over(follower)
    contest.check()


def test_a_leader_stopped_at_any_moment_writes_nothing_after_its_successor(
    contest: Contest,
) -> None:
    """SIGSTOP beyond the lease and SIGCONT: not one write of the old leader is accepted."""
    rng = random.Random(0)
    for number in range(ROUNDS):
        leader, follower = contest.ready()
        pause = rng.random() * 0.05
        end = time.monotonic() + pause
        until(partial(_passed, end))
        leader.signal(signal.SIGSTOP)
        contest.taken_over(follower, objects=1 if number % 2 else OBJECTS)
        leader.signal(signal.SIGCONT)
        assert leader.process.wait(30) == EXIT_CODE
        contest.taken_over(follower)
    contest.check()


def test_a_leader_stopped_between_check_and_sending_never_sends(contest: Contest) -> None:
    """Stopped right after the fence let a write pass, the process is ended before it sends."""
    for _ in range(3):
        leader, follower = contest.ready("--stop-at=after")
        leader.signal(signal.SIGUSR1)
        until(leader.is_stopped)
        # While the new leader has written few objects, versions do not protect the others.
        contest.taken_over(follower, objects=1)
        leader.signal(signal.SIGCONT)
        assert leader.process.wait(30) == EXIT_CODE
        contest.taken_over(follower)
    contest.check()


def test_the_fence_alone_refuses_a_write_after_the_deadline(contest: Contest) -> None:
    """Stopped right before the check, a leader without a deadman timer refuses by itself."""
    leader, follower = contest.ready("--stop-at=before", "--no-deadman")
    leader.signal(signal.SIGUSR1)
    until(leader.is_stopped)
    contest.taken_over(follower, objects=1)
    resumed = datetime.now(UTC)
    leader.signal(signal.SIGCONT)
    assert leader.process.wait(30) == 0
    assert leader.printed("lost")
    contest.taken_over(follower)
    assert contest.answers(leader, after=resumed) == []
    contest.check()


def test_a_write_that_slips_through_meets_the_resource_version(contest: Contest) -> None:
    """Stopped right after the check and without a deadman timer, its write is refused."""
    leader, follower = contest.ready("--stop-at=after", "--no-deadman")
    leader.signal(signal.SIGUSR1)
    until(leader.is_stopped)
    contest.taken_over(follower)
    resumed = datetime.now(UTC)
    leader.signal(signal.SIGCONT)
    assert leader.process.wait(30) == 0
    assert leader.printed("lost")
    # 504 if the process noticed its loss, and hung up, before the server had looked.
    answers = until(partial(contest.answers, leader, after=resumed))
    assert set(answers) <= {409, 504}
    contest.check()


def test_an_orderly_stop_hands_over_before_the_lease_runs_out(contest: Contest) -> None:
    """SIGTERM gives the lease back, so the follower leads without waiting for its end."""
    leader, follower = contest.ready()
    leader.signal(signal.SIGTERM)
    assert leader.process.wait(30) == 0
    lease = contest._send(
        "GET",
        f"/apis/coordination.k8s.io/v1/namespaces/{contest.namespace}/leases/zonewise-test",
    )
    assert lease["spec"]["holderIdentity"] != leader.user
    contest.taken_over(follower)
    contest.check()


def test_other_tools_can_read_the_lease(contest: Contest) -> None:
    """The server accepts our times and shows them as MicroTime; kubectl prints the holder."""
    leader, _ = contest.ready()
    table = contest.plane.kubectl("get", "lease", "zonewise-test", "-n", contest.namespace).stdout
    assert leader.user in table
    spec = json.loads(
        contest.plane.kubectl(
            "get", "lease", "zonewise-test", "-n", contest.namespace, "-o", "json"
        ).stdout
    )["spec"]
    assert spec["leaseDurationSeconds"] == TIMING.duration
    assert len(spec["renewTime"]) == len("2026-01-01T00:00:00.000000Z")
