"""Who listens to a configuration, and for how long."""

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
    """How many listen."""

    listening = 0

    def on_status_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """One more, and one less."""
        end = super().on_status_change(listener)
        self.listening += 1

        def silent() -> None:
            end()
            self.listening -= 1

        return silent


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_controller_listens_while_it_leads() -> None:
    """However often somebody leads, one listens; at the end of a lead nobody does."""
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


def test_who_listens_no_more_is_told_nothing() -> None:
    """Others still are, also if one leaves while it is told."""
    source = FollowedConfiguration()
    told: list[str] = []

    def once() -> None:
        told.append("first")
        leave()

    leave = source.on_status_change(once)
    source.on_status_change(lambda: told.append("second"))
    source.use(StorageConfiguration())
    source.refuse("wrong")
    assert told == ["first", "second", "second"]
