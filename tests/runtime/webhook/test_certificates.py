"""Rotation in virtual time: replicas that race, restart and lag, and API servers that read late.

In every test: when a replica begins to serve a certificate, every webhook configuration has trusted
its authority for as long as an API server may need to notice.
"""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runtime.memory_server import refusal
from tests.runtime.swap_server import SwapServer, Way

from zonewise.api.objects.admissionregistration import (
    MutatingWebhookConfiguration,
    ValidatingWebhookConfiguration,
)
from zonewise.runtime.client.transport import Request
from zonewise.runtime.webhook.certificates import (
    Certificates,
    CertificateSecret,
    RotationTiming,
    authorities,
    holds,
)
from zonewise.runtime.webhook.issuer import IssuedCertificate, hosts, issue, validity

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TIMING = RotationTiming(lifetime=HOUR, settle=60, poll=10)
SECRET = CertificateSecret.resource.path("zw", "webhook-tls")
MUTATING = MutatingWebhookConfiguration.resource.path(None, "zonewise")
VALIDATING = ValidatingWebhookConfiguration.resource.path(None, "zonewise")
CONFIGURATIONS: Any = (
    (MutatingWebhookConfiguration, "zonewise"),
    (ValidatingWebhookConfiguration, "zonewise"),
)


def now() -> datetime:
    return START + timedelta(seconds=asyncio.get_running_loop().time())


def configuration(hooks: int = 2) -> dict[str, Any]:
    return {"webhooks": [{"name": f"w{n}.x", "clientConfig": {}} for n in range(hooks)]}


def bundles_of(item: dict[str, Any]) -> list[bytes]:
    webhooks = item.get("webhooks", ())
    return [base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in webhooks]


class World:
    """A server with a Secret and two configurations, and replicas that manage them."""

    def __init__(self) -> None:
        self.server = SwapServer()
        self.server.put(MUTATING, configuration())
        self.server.put(VALIDATING, configuration(1))
        self.replicas: list[Replica] = []

    def replica(self, **options: Any) -> Replica:
        replica = Replica(self, f"r{len(self.replicas)}", **options)
        self.replicas.append(replica)
        return replica

    def bundles(self, *, at: float | None = None) -> list[bytes]:
        """The bundles of all webhooks, now or at a time."""
        bundles: list[bytes] = []
        for path in (MUTATING, VALIDATING):
            item = self.server.objects.get(path)
            if at is not None:
                past = [w for w in self.server.writes if w.path == path and w.at <= at]
                item = past[-1].result if past and past[-1].method != "DELETE" else None
            bundles += bundles_of(item or {})
        return bundles

    def authority(self, certificate: bytes) -> bytes:
        """The authority of a certificate, among all that were ever in the Secret."""
        encoded = base64.b64encode(certificate).decode()
        for write in reversed(self.server.writes):
            data = write.result.get("data") or {}
            for name, authority in (("tls.crt", "ca.crt"), ("next.crt", "next-ca.crt")):
                if data.get(name) == encoded:
                    return base64.b64decode(data.get(authority, ""))
        raise AssertionError("a certificate that nobody has stored")

    async def close(self) -> None:
        """Stop all replicas; check that none removed trust in a certificate that another served."""
        for replica in self.replicas:
            await replica.stop()
        for write in self.server.writes:
            if write.path in (MUTATING, VALIDATING) and write.by != "test":
                for replica in self.replicas:
                    authority = replica.authority_at(write.at)
                    assert all(holds(b, authority) for b in bundles_of(write.result)), write.at


class Replica:
    """One process that serves."""

    def __init__(
        self, world: World, name: str, *, names: tuple[str, ...] = ("web.zw.svc",), **options: Any
    ) -> None:
        self.world = world
        self.way: Way = world.server.way(name)
        self.name = name
        self.served: list[tuple[float, IssuedCertificate]] = []
        self.stopped = float("inf")
        self.certificates = Certificates(
            self.way.client(),
            secret="webhook-tls",
            namespace="zw",
            hosts=names,
            configurations=CONFIGURATIONS,
            serve=self.serve,
            now=now,
            rng=random.Random(name),
            **{"timing": TIMING, **options},
        )
        self.task: asyncio.Task[None] | None = None

    def serve(self, certificate: bytes, key: bytes) -> None:
        at = asyncio.get_running_loop().time()
        authority = self.world.authority(certificate)
        begin, end = validity(certificate)
        assert begin <= now() < end
        # API servers know what was written some seconds ago, a little less than the replicas wait.
        hurry = not self.served or validity(self.pair.certificate)[1] <= now()
        lag = 0.0 if hurry else TIMING.settle - 1
        for moment in (at - lag, at):
            for bundle in self.world.bundles(at=moment):
                assert holds(bundle, authority), f"{self.name} serves what nobody trusts"
        self.served.append((at, IssuedCertificate(certificate, key, authority)))

    def authority_at(self, at: float) -> bytes:
        """The authority of the certificate it served at a time; empty if it had expired."""
        served = [pair for since, pair in self.served if since <= at < self.stopped]
        if not served or validity(served[-1].certificate)[1] <= START + timedelta(seconds=at):
            return b""
        return served[-1].authority

    def start(self) -> Replica:
        self.task = asyncio.create_task(self.certificates.run())
        return self

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            self.stopped = min(self.stopped, asyncio.get_running_loop().time())
            if not self.task.cancelled():
                self.task.result()
            await self.way.close()

    @property
    def pair(self) -> IssuedCertificate:
        return self.served[-1][1]


@pytest.mark.looptime
async def test_the_first_replica_makes_a_certificate_and_publishes_it() -> None:
    """In one pass: a Secret, trust in every webhook, and a certificate that is served."""
    world = World()
    replica = world.replica().start()
    await replica.certificates.serving.wait()
    assert asyncio.get_running_loop().time() == 0
    data = world.server.objects[SECRET]["data"]
    assert sorted(data) == ["ca.crt", "tls.crt", "tls.key"]
    assert [authorities(b) for b in world.bundles()] == [(replica.pair.authority,)] * 3
    assert hosts(replica.pair.certificate) == {"web.zw.svc"}
    assert replica.certificates.problem() is None
    await world.close()


@pytest.mark.looptime
async def test_replicas_that_start_together_agree() -> None:
    """Replicas that start together serve the same certificate, and one authority is trusted."""
    world = World()
    replicas = [world.replica().start() for _ in range(5)]
    for replica in replicas:
        await replica.certificates.serving.wait()
    assert len({replica.pair for replica in replicas}) == 1
    assert len(authorities(world.bundles()[0])) == 1
    await world.close()


@pytest.mark.slow
@pytest.mark.looptime
async def test_rotation_goes_on_by_itself() -> None:
    """Over many lifetimes both replicas change together, and bundles stay small."""
    world = World()
    first, second = world.replica().start(), world.replica().start()
    await asyncio.sleep(4 * 3600)
    pairs = [pair for _, pair in first.served]
    assert pairs == [pair for _, pair in second.served]
    assert 5 <= len(pairs) <= 7
    assert all(1 <= len(authorities(bundle)) <= 3 for bundle in world.bundles())
    lag = [abs(a - b) for (a, _), (b, _) in zip(first.served[1:], second.served[1:], strict=True)]
    assert max(lag) <= 2 * TIMING.poll
    await world.close()


@pytest.mark.looptime
async def test_old_and_new_are_trusted_while_rotating() -> None:
    """While both certificates are in use, both authorities are in all bundles."""
    world = World()
    replica = world.replica().start()
    await asyncio.sleep(2400 + 30)
    assert "next.crt" in world.server.objects[SECRET]["data"]
    old = replica.pair.authority
    assert all(len(authorities(bundle)) == 2 for bundle in world.bundles())
    await asyncio.sleep(60)
    assert replica.pair.authority != old
    assert all(holds(bundle, old + replica.pair.authority) for bundle in world.bundles())
    await asyncio.sleep(1200)
    assert not any(holds(bundle, old) for bundle in world.bundles())
    await world.close()


@pytest.mark.looptime
async def test_a_replica_that_was_away_still_serves_what_is_trusted() -> None:
    """The old certificate of a replica that missed a rotation is trusted until it changes."""
    world = World()
    first, second = world.replica().start(), world.replica().start()
    await asyncio.sleep(2300)
    second.way.cut = True
    await asyncio.sleep(1000)
    assert first.pair != second.pair
    assert all(holds(bundle, second.pair.authority) for bundle in world.bundles())
    second.way.cut = False
    await asyncio.sleep(100)
    assert first.pair == second.pair
    await world.close()


@pytest.mark.looptime
async def test_a_restart_in_the_middle_changes_nothing() -> None:
    """A replica that starts during a rotation serves the certificate in use, then follows."""
    world = World()
    first = world.replica().start()
    await asyncio.sleep(2400 + 20)
    second = world.replica().start()
    await second.certificates.serving.wait()
    assert second.pair == first.pair
    await asyncio.sleep(120)
    assert second.pair == first.pair and len(second.served) == 2
    await world.close()


@pytest.mark.looptime
async def test_configurations_that_are_applied_anew_are_repaired() -> None:
    """A ``kubectl apply`` without a bundle is repaired at the next pass."""
    world = World()
    world.replica().start()
    await asyncio.sleep(100)
    good = world.bundles()
    world.server.put(MUTATING, configuration())
    await asyncio.sleep(12)
    assert world.bundles() == good
    del world.server.objects[VALIDATING]
    await asyncio.sleep(20)
    world.server.put(VALIDATING, configuration(1))
    await asyncio.sleep(12)
    assert world.bundles() == good
    await world.close()


@pytest.mark.looptime
async def test_losing_trust_while_settling_starts_the_wait_again() -> None:
    """A new certificate is not served while an API server may have missed its authority."""
    world = World()
    replica = world.replica().start()
    await asyncio.sleep(2400 + 50)
    data = world.server.objects[SECRET]["data"]
    assert "next.crt" in data
    world.server.put(MUTATING, configuration())
    await asyncio.sleep(55)
    assert len(replica.served) == 1
    await asyncio.sleep(30)
    assert len(replica.served) == 2
    await world.close()


@pytest.mark.looptime
async def test_new_host_names_make_a_new_certificate() -> None:
    """A replica with other hosts rotates once, to a certificate for its own and the old names."""
    world = World()
    first = world.replica().start()
    await first.certificates.serving.wait()
    second = world.replica(names=("new.zw.svc",)).start()
    await asyncio.sleep(600)
    assert hosts(first.pair.certificate) == {"web.zw.svc", "new.zw.svc"}
    assert first.pair == second.pair and len(first.served) == 2
    await world.close()


@pytest.mark.looptime
@pytest.mark.parametrize(
    "data", [{"tls.crt": "AAAA", "tls.key": "AAAA"}, {"tls.crt": "?"}, {"tls.key": "QQ=="}, None]
)
async def test_nonsense_in_the_secret_is_replaced(data: dict[str, str] | None) -> None:
    """A Secret without a valid certificate gets a new one."""
    world = World()
    world.server.put(SECRET, {"data": data} if data is not None else {})
    replica = world.replica().start()
    await replica.certificates.serving.wait()
    await world.close()


@pytest.mark.looptime
async def test_an_expired_certificate_is_replaced_at_once() -> None:
    """If all certificates have expired, the new one is served without waiting."""
    world = World()
    first = world.replica().start()
    await first.certificates.serving.wait()
    await first.stop()
    await asyncio.sleep(5 * 3600)
    assert first.certificates.problem() is not None
    begin = asyncio.get_running_loop().time()
    second = world.replica().start()
    await second.certificates.serving.wait()
    assert asyncio.get_running_loop().time() == begin
    assert all(authorities(b) == (second.pair.authority,) for b in world.bundles())
    await world.close()


@pytest.mark.looptime
async def test_faults_are_waited_out() -> None:
    """With missing permissions or an absent server there is one request per poll."""
    world = World()
    replica = world.replica()
    replica.way.refuses = lambda request: refusal(403, "Forbidden")
    replica.start()
    await asyncio.sleep(100)
    assert replica.certificates.problem() == "there is no serving certificate yet"
    assert len(replica.way.requests) <= 100 / 10 + 1
    replica.way.refuses = lambda request: None
    await replica.certificates.serving.wait()
    await world.close()


def provided(pair: IssuedCertificate, *, authority: bool = True) -> dict[str, Any]:
    parts = {"tls.crt": pair.certificate, "tls.key": pair.key}
    if authority:
        parts["ca.crt"] = pair.authority
    return {"data": {name: base64.b64encode(part).decode() for name, part in parts.items()}}


@pytest.mark.looptime
async def test_a_provided_secret_is_served_and_never_written() -> None:
    """The authority of a user's Secret is published, then its certificate is served."""
    world = World()
    first, second = (issue(["x"], now=START, lifetime=10 * HOUR) for _ in range(2))
    replica = world.replica(managed=False)
    replica.start()
    await asyncio.sleep(30)
    assert replica.certificates.problem() is not None
    world.server.put(SECRET, provided(first))
    await asyncio.sleep(12)
    assert replica.pair == first and all(holds(b, first.authority) for b in world.bundles())
    world.server.put(SECRET, provided(second))
    await asyncio.sleep(30)
    assert replica.pair == first and all(holds(b, second.authority) for b in world.bundles())
    await asyncio.sleep(60)
    assert replica.pair == second
    assert not any(write.path == SECRET and write.by != "test" for write in world.server.writes)
    await world.close()


@pytest.mark.looptime
async def test_a_provided_secret_without_an_authority_leaves_bundles_alone() -> None:
    """A Secret without an authority is only served."""
    world = World()
    pair = issue(["x"], now=START, lifetime=10 * HOUR)
    world.server.put(SECRET, provided(pair, authority=False))
    replica = world.replica(managed=False)
    replica.start()
    await replica.certificates.serving.wait()
    assert world.bundles() == [b"", b"", b""]
    await world.close()


def slow(seconds: float) -> Callable[[Request], float]:
    rng = random.Random(seconds)
    return lambda request: rng.uniform(0, seconds)


STEPS = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["restart", "cut", "heal", "slow", "apply", "delete"]),
    st.sampled_from([1.0, 25.0, 70.0, 700.0]),
)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=8))
def test_no_replica_serves_a_certificate_that_is_not_trusted(
    steps: list[tuple[int, str, float]],
) -> None:
    """With races, restarts, cuts and rivals, trust comes before use, and at the end all agree."""

    async def scenario() -> None:
        world = World()
        replicas = {number: world.replica().start() for number in range(3)}
        for number, what, seconds in steps:
            replica = replicas[number]
            match what:
                case "restart":
                    await replica.stop()
                    replicas[number] = world.replica().start()
                case "cut":
                    replica.way.cut = True
                case "heal":
                    replica.way.cut = False
                    replica.way.there = replica.way.back = slow(0.0)
                case "slow":
                    replica.way.there = replica.way.back = slow(4.0)
                case "apply":
                    # Another client removes trust, so what is served then may be untrusted;
                    # everything settles again before the next step.
                    world.server.put(VALIDATING, world.server.objects[MUTATING])
                case _:
                    world.server.objects.pop(SECRET, None)
            await asyncio.sleep(seconds)
        for replica in replicas.values():
            replica.way.cut = False
            replica.way.there = replica.way.back = slow(0.0)
        await asyncio.sleep(600)
        await world.close()
        assert len({replica.pair for replica in replicas.values()}) == 1

    loop = looptime.new_event_loop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
