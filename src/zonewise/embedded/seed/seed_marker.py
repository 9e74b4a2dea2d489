"""What a cluster was seeded from, recorded in the cluster itself.

A cluster is seeded once. The ConfigMap ``zonewise-system/origin`` is written when that is done, so
that the next start on the same folder seeds nothing: what its owner has deleted stays deleted. A
start that was interrupted before leaves no ConfigMap, and the next one creates what is missing.
"""

from __future__ import annotations

from zonewise.api.errors import AlreadyExists, NotFound
from zonewise.api.meta import ObjectMeta
from zonewise.api.objects.core import Namespace
from zonewise.api.resource import Resource
from zonewise.api.unstructured import unstructured
from zonewise.runtime.client.client import Client

NAMESPACE = "zonewise-system"
ORIGIN = "origin"

ConfigMap = unstructured(Resource("", "v1", "ConfigMap", "configmaps"))


async def read_origin(client: Client) -> str | None:
    """What the cluster was seeded from, or None if it was not seeded yet."""
    try:
        config_map = await client.get(ConfigMap, ORIGIN, NAMESPACE)
    except NotFound:
        return None
    return str(config_map.get("data", "from", default=""))


async def record_origin(client: Client, origin: str) -> None:
    """Record what the cluster was seeded from."""
    await ensure_namespace(client)
    await client.apply(ConfigMap, ORIGIN, NAMESPACE, {"data": {"from": origin}}, force=True)


async def ensure_namespace(client: Client) -> None:
    """Create the namespace of our own objects, if it does not exist."""
    try:
        await client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    except AlreadyExists:
        return
