"""What is counted of the new pods of a rollout by domain: those that waited, and others."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.rollouts.rollout_scene import begin, finish, update, workload
from tests.embedded.whole_cluster import settled, whole

from zonewise.api.objects.budgets import DomainRollout
from zonewise.embedded.held_replacements import HeldReplacements
from zonewise.embedded.seed.nodes import NodeLayout
from zonewise.runtime.monitoring.metrics import Metrics

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]

SURGE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 2, "maxUnavailable": 0}}


def released(metrics: Metrics, domain: str) -> float:
    """How many pods were sent to one domain, or to any."""
    name = "zonewise_rollout_pods_released_total"
    return metrics.registry.get_sample_value(name, {"domain": domain}) or 0.0


def not_held(metrics: Metrics) -> float:
    """How many pods admission let through."""
    value = metrics.registry.get_sample_value("zonewise_rollout_pods_not_held_total")
    assert value is not None
    return value


async def test_pods_that_waited_are_counted_by_where_they_went() -> None:
    """Pods that got a domain and pods that may start anywhere are counted apart, and none of them
    as not held.
    """
    metrics = Metrics()
    objects = [*NodeLayout().nodes(), workload("Deployment", strategy=SURGE)]
    async with whole(objects, metrics=metrics) as cluster:
        await begin(cluster, "Deployment")
        await update(cluster, "Deployment")
        await finish(cluster)
        assert released(metrics, "one") == 6
        assert released(metrics, "any") == 0
        pause = {"spec": {"paused": True}}
        await cluster.client.patch(DomainRollout, "foo", "default", pause)
        await update(cluster, "Deployment", "c:3")
        await asyncio.sleep(60)
        await cluster.client.delete(DomainRollout, "foo", "default")
        await settled(cluster)
        assert (released(metrics, "one"), released(metrics, "any")) == (6, 2)
        assert not_held(metrics) == 0


async def test_pods_that_admission_let_through_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """New pods that were created without the gate while the rollout runs are counted, no others,
    and the rollout ends all the same.
    """
    monkeypatch.setattr(HeldReplacements, "__call__", lambda self, attributes: None)
    metrics = Metrics()
    objects = [*NodeLayout().nodes(), workload("Deployment", strategy=SURGE)]
    async with whole(objects, metrics=metrics) as cluster:
        await begin(cluster, "Deployment")
        assert not_held(metrics) == 0
        await update(cluster, "Deployment")
        await finish(cluster)
        assert not_held(metrics) == 6
        assert released(metrics, "one") == released(metrics, "any") == 0
