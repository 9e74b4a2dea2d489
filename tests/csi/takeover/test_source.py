"""Listeners of a configuration: when they are added and removed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.embedded.virtual_cluster import until, virtual_cluster

from zonewise.csi.takeover.controller import TakeoverController, TakeoverSettings
from zonewise.csi.takeover.source import FollowedConfiguration
from zonewise.storage.configuration import StorageConfiguration
from zonewise.storage.domains import parse_domain_labels

LABELS = parse_domain_labels("topology.kubernetes.io/zone", "csi.zonewise.io")


class Counted(FollowedConfiguration):
    """Counts its listeners."""

    listening = 0

    def on_status_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener; the count goes down when it is removed."""
        end = super().on_status_change(listener)
        self.listening += 1

        def silent() -> None:
            end()
            self.listening -= 1

        return silent


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_controller_listens_while_it_leads() -> None:
    """Each time a controller leads there is one listener; afterwards there is none."""
    source = Counted()
    for _ in range(3):
        parts = {
            "takeover": lambda context: TakeoverController(
                context, TakeoverSettings(source=source, labels=LABELS, namespace="default")
            )
        }
        async with virtual_cluster(parts):
            await until(lambda: source.listening == 1)
        assert source.listening == 0


def test_removed_listeners_are_not_called() -> None:
    """A removed listener is not called, others still are, also if it removes itself in its call."""
    source = FollowedConfiguration()
    calls: list[str] = []

    def once() -> None:
        calls.append("first")
        leave()

    leave = source.on_status_change(once)
    source.on_status_change(lambda: calls.append("second"))
    source.use(StorageConfiguration())
    source.refuse("wrong")
    assert calls == ["first", "second", "second"]
