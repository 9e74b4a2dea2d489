"""A controller's context works the same with and without metrics."""

from __future__ import annotations

import dataclasses

import pytest
from tests.embedded.virtual_cluster import virtual_cluster

from zonewise.runtime.monitoring.metrics import Metrics


async def _done(_: tuple[str, str]) -> float | None:
    return None


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_controller_is_counted_where_metrics_are_read() -> None:
    """With metrics the queue of a controller is shown under its name; without, nothing is."""
    async with virtual_cluster({}) as cluster:
        context = cluster.program.context("hello")
        assert context.metrics is None
        assert context.controller("hello", _done).name == "hello"
        metrics = Metrics()
        counted = dataclasses.replace(context, metrics=metrics).controller("hello", _done)
        counted.enqueue(("", "x"))
        assert 'workqueue_depth{name="hello"} 1.0' in metrics.render().decode()
