"""What controllers run on: client, watch, store, queue, controller, election, recorder, metrics.

``docs/runtime.md`` is the guide. The names imported below are the public ones. A type checker reads
the import statements; at run time each is executed when its name is first used, because a program
that only reads a kubeconfig should not wait for an HTTP library.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonewise.runtime.cache.cache import Cache as Cache
    from zonewise.runtime.cache.reflector import Reflector as Reflector
    from zonewise.runtime.cache.snapshot import Snapshot as Snapshot
    from zonewise.runtime.cache.store import Store as Store
    from zonewise.runtime.client.client import Client as Client
    from zonewise.runtime.client.client import Listing as Listing
    from zonewise.runtime.client.client import Version as Version
    from zonewise.runtime.client.exchange import RequestResult as RequestResult
    from zonewise.runtime.client.limiter import Limiter as Limiter
    from zonewise.runtime.client.transport import HttpsTransport as HttpsTransport
    from zonewise.runtime.client.transport import Request as Request
    from zonewise.runtime.client.transport import Response as Response
    from zonewise.runtime.client.transport import Transport as Transport
    from zonewise.runtime.client.watch import WatchEvent as WatchEvent
    from zonewise.runtime.client.watch import WatchOptions as WatchOptions
    from zonewise.runtime.client.watch import WatchStats as WatchStats
    from zonewise.runtime.config.cluster import ClusterConfig as ClusterConfig
    from zonewise.runtime.config.cluster import in_cluster_config as in_cluster_config
    from zonewise.runtime.config.cluster import load_config as load_config
    from zonewise.runtime.controller.controller import Controller as Controller
    from zonewise.runtime.controller.controller import own_key as own_key
    from zonewise.runtime.controller.queue import Queue as Queue
    from zonewise.runtime.controller.recorder import Recorder as Recorder
    from zonewise.runtime.election.deadman import Deadman as Deadman
    from zonewise.runtime.election.election import Election as Election
    from zonewise.runtime.election.election import LeaseTiming as LeaseTiming
    from zonewise.runtime.monitoring.health import Health as Health
    from zonewise.runtime.monitoring.metrics import Metrics as Metrics
    from zonewise.runtime.monitoring.monitor import Monitor as Monitor
    from zonewise.runtime.process.logs import configure as configure
    from zonewise.runtime.process.logs import logger as logger
    from zonewise.runtime.process.memory import settle as settle
    from zonewise.runtime.process.process import Process as Process
    from zonewise.runtime.process.process import run as run
    from zonewise.runtime.webhook.admission import AdmissionRequest as AdmissionRequest
    from zonewise.runtime.webhook.admission import Allowed as Allowed
    from zonewise.runtime.webhook.admission import Denied as Denied
    from zonewise.runtime.webhook.certificates import Certificates as Certificates
    from zonewise.runtime.webhook.server import AdmissionDispatcher as AdmissionDispatcher
    from zonewise.runtime.webhook.server import WebhookServer as WebhookServer
    from zonewise.runtime.webhook.server_context import ServerContext as ServerContext


@cache
def _homes() -> dict[str, str]:
    """The module of each public name, from the statements above."""
    return {
        alias.name: str(node.module)
        for node in ast.walk(ast.parse(Path(__file__).read_bytes()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__name__}.")
        for alias in node.names
    }


def __getattr__(name: str) -> object:
    if name.startswith("_") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_homes()[name]), name)


def __dir__() -> list[str]:
    return sorted(_homes())
