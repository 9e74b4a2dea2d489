"""The hints controller on a living cluster, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.shops import Shop, hints
from tests.embedded.living import living, until

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def test_slices_and_hints_appear_for_a_new_service() -> None:
    """Pods of a Service become endpoints with hints; the Service says so, once."""
    async with living({"hints": hints()}) as cluster:
        shop = Shop(cluster)
        await shop.zones(a=1, b=1, c=1)
        await shop.service("web")
        await shop.pods(a0=2, b0=2, c0=2)
        await until(lambda: shop.per_zone() == {"a": 2, "b": 2, "c": 2})
        await until(lambda: shop.condition() == ("True", "Hinted"))
        await asyncio.sleep(10)
        assert len(shop.of("web")) == 1
        assert (await shop.events())[-1] == "TopologyAwareHintsEnabled"
