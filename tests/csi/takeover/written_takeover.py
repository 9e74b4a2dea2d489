"""The takeover that a cluster's ConfigMap holds."""

from __future__ import annotations

import json

from tests.embedded.virtual_cluster import VirtualCluster

from zonewise.csi.takeover.controller import ConfigMap
from zonewise.csi.takeover.status import AUTOMATIC_ANNOTATION, CONFIG_KEY, CONFIG_MAP


async def written(cluster: VirtualCluster) -> tuple[dict[str, list[str]], str]:
    """The map, and which entries are automatic."""
    found = await cluster.client.get(ConfigMap, CONFIG_MAP, "default")
    value = json.loads(str(found.get("data", CONFIG_KEY)))
    return value.get("topology-takeover", {}), found.metadata.annotations.get(
        AUTOMATIC_ANNOTATION, ""
    )
