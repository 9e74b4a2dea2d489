"""The takeover in a cluster's ConfigMap."""

from __future__ import annotations

import json

from tests.embedded.virtual_cluster import VirtualCluster

from zonewise.csi.takeover.controller import ConfigMap
from zonewise.csi.takeover.status import AUTOMATIC_ANNOTATION, CONFIG_KEY, CONFIG_MAP


async def written(cluster: VirtualCluster) -> tuple[dict[str, list[str]], str]:
    """The map, and which entries are automatic."""
    config_map = await cluster.client.get(ConfigMap, CONFIG_MAP, "default")
    value = json.loads(str(config_map.get("data", CONFIG_KEY)))
    return value.get("topology-takeover", {}), config_map.metadata.annotations.get(
        AUTOMATIC_ANNOTATION, ""
    )
