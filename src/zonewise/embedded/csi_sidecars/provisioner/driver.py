"""What a driver can do, asked once, and its calls with the secrets they need.

The provisioner may start before the driver: it asks again until the driver answers.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.storage import SecretReference
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.status import CsiError
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    PROBE,
)
from zonewise.runtime.client.client import Client
from zonewise.runtime.process.logs import logger

PAUSE = 2.0
RPC = csi.ControllerServiceCapability.RPC
SERVICE = csi.PluginCapability.Service

_log = logger("provisioner")


@dataclass(frozen=True, slots=True)
class ReachableDriver:
    """A driver that answered, and what it can do."""

    name: str
    client: CsiClient
    topology: bool
    abilities: frozenset[int]

    def can(self, ability: int) -> bool:
        """Whether it has a controller capability."""
        return ability in self.abilities


async def found(client: CsiClient) -> ReachableDriver:
    """The driver behind a client, as soon as it is ready."""
    while True:
        try:
            ready = await client.call(PROBE, csi.ProbeRequest())
            if not ready.HasField("ready") or ready.ready.value:
                return await _asked(client)
            why = "it is not ready"
        except CsiError as error:
            why = str(error)
        _log.info("waiting for the driver", why=why)
        await asyncio.sleep(PAUSE)


async def _asked(client: CsiClient) -> ReachableDriver:
    info = await client.call(GET_PLUGIN_INFO, csi.GetPluginInfoRequest())
    plugin = await client.call(GET_PLUGIN_CAPABILITIES, csi.GetPluginCapabilitiesRequest())
    controller = await client.call(
        CONTROLLER_GET_CAPABILITIES, csi.ControllerGetCapabilitiesRequest()
    )
    services = {one.service.type for one in plugin.capabilities}
    return ReachableDriver(
        name=info.name,
        client=client,
        topology=SERVICE.VOLUME_ACCESSIBILITY_CONSTRAINTS in services,
        abilities=frozenset(one.rpc.type for one in controller.capabilities),
    )


async def secrets(client: Client, ref: SecretReference | None) -> dict[str, str]:
    """What a Secret holds; nothing if none is named."""
    if ref is None:
        return {}
    path = f"/api/v1/namespaces/{ref.namespace}/secrets/{ref.name}"
    answer: dict[str, Any] = (await client.raw("GET", path)).json()
    try:
        return {key: b64decode(value).decode() for key, value in answer.get("data", {}).items()}
    except ValueError:
        raise ZonewiseError(
            f"Secret {ref.namespace}/{ref.name} holds bytes that are not text"
        ) from None
