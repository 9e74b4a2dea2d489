"""What a driver can do, read once, and the secrets of its calls.

The sidecars may start before the driver: they retry until it answers.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from dataclasses import dataclass
from typing import Any

from zonewise.api.errors import ZonewiseError
from zonewise.api.objects.storage import SecretReference
from zonewise.csi.errors import CsiError
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport.client import CsiClient
from zonewise.csi.transport.methods import (
    CONTROLLER_GET_CAPABILITIES,
    GET_PLUGIN_CAPABILITIES,
    GET_PLUGIN_INFO,
    PROBE,
)
from zonewise.runtime.client.client import Client
from zonewise.runtime.process.logs import logger

RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 300.0
"""The longest time between two attempts of the sidecars."""
RPC = csi.ControllerServiceCapability.RPC
SERVICE = csi.PluginCapability.Service

_log = logger("provisioner")


@dataclass(frozen=True, slots=True)
class ReachableDriver:
    """A driver that answered, and what it can do."""

    name: str
    client: CsiClient
    topology: bool
    capabilities: frozenset[int]

    def can(self, capability: int) -> bool:
        """Whether the driver has a controller capability."""
        return capability in self.capabilities


async def connect_driver(client: CsiClient) -> ReachableDriver:
    """Wait until the driver behind a client is ready, and read its capabilities."""
    while True:
        try:
            probe = await client.call(PROBE, csi.ProbeRequest())
            if not probe.HasField("ready") or probe.ready.value:
                return await _read_capabilities(client)
            reason = "it is not ready"
        except CsiError as error:
            reason = str(error)
        _log.info("waiting for the driver", why=reason)
        await asyncio.sleep(RETRY_SECONDS)


async def _read_capabilities(client: CsiClient) -> ReachableDriver:
    info = await client.call(GET_PLUGIN_INFO, csi.GetPluginInfoRequest())
    plugin = await client.call(GET_PLUGIN_CAPABILITIES, csi.GetPluginCapabilitiesRequest())
    controller = await client.call(
        CONTROLLER_GET_CAPABILITIES, csi.ControllerGetCapabilitiesRequest()
    )
    services = {capability.service.type for capability in plugin.capabilities}
    return ReachableDriver(
        name=info.name,
        client=client,
        topology=SERVICE.VOLUME_ACCESSIBILITY_CONSTRAINTS in services,
        capabilities=frozenset(capability.rpc.type for capability in controller.capabilities),
    )


async def read_secret(client: Client, ref: SecretReference | None) -> dict[str, str]:
    """The data of a Secret; empty without a reference."""
    if ref is None:
        return {}
    path = f"/api/v1/namespaces/{ref.namespace}/secrets/{ref.name}"
    secret: dict[str, Any] = (await client.raw("GET", path)).json()
    try:
        return {key: b64decode(value).decode() for key, value in secret.get("data", {}).items()}
    except ValueError:
        raise ZonewiseError(
            f"Secret {ref.namespace}/{ref.name} has data that is not text"
        ) from None
