"""How controllers live: client, watch, store, queue, controller, election, recorder, metrics.

``docs/runtime.md`` is the guide. The names below are the public ones; each is loaded when it is
first used, because a program that only reads a kubeconfig should not wait for an HTTP library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonewise.runtime.admission import AdmissionRequest, Allowed, Denied
    from zonewise.runtime.cache import Cache
    from zonewise.runtime.certificates import Certificates
    from zonewise.runtime.client import Client, Listing, Version
    from zonewise.runtime.cluster import ClusterConfig, in_cluster_config, load_config
    from zonewise.runtime.controller import Controller, own_key
    from zonewise.runtime.deadman import Deadman
    from zonewise.runtime.election import Election, LeaseTiming
    from zonewise.runtime.exchange import Answer
    from zonewise.runtime.health import Health
    from zonewise.runtime.limiter import Limiter
    from zonewise.runtime.logs import configure, logger
    from zonewise.runtime.memory import settle
    from zonewise.runtime.metrics import Metrics
    from zonewise.runtime.monitor import Monitor
    from zonewise.runtime.process import Process, run
    from zonewise.runtime.queue import Queue
    from zonewise.runtime.recorder import Recorder
    from zonewise.runtime.reflector import Reflector
    from zonewise.runtime.servercontext import ServerContext
    from zonewise.runtime.snapshot import Snapshot
    from zonewise.runtime.store import Store
    from zonewise.runtime.transport import HttpsTransport, Request, Response, Transport
    from zonewise.runtime.watch import WatchEvent, WatchOptions, WatchStats
    from zonewise.runtime.webhook import Desk, WebhookServer

_MODULES = {
    "admission": ("AdmissionRequest", "Allowed", "Denied"),
    "cache": ("Cache",),
    "certificates": ("Certificates",),
    "client": ("Client", "Listing", "Version"),
    "cluster": ("ClusterConfig", "in_cluster_config", "load_config"),
    "controller": ("Controller", "own_key"),
    "deadman": ("Deadman",),
    "election": ("Election", "LeaseTiming"),
    "exchange": ("Answer",),
    "health": ("Health",),
    "limiter": ("Limiter",),
    "logs": ("configure", "logger"),
    "memory": ("settle",),
    "metrics": ("Metrics",),
    "monitor": ("Monitor",),
    "process": ("Process", "run"),
    "queue": ("Queue",),
    "recorder": ("Recorder",),
    "reflector": ("Reflector",),
    "servercontext": ("ServerContext",),
    "snapshot": ("Snapshot",),
    "store": ("Store",),
    "transport": ("HttpsTransport", "Request", "Response", "Transport"),
    "watch": ("WatchEvent", "WatchOptions", "WatchStats"),
    "webhook": ("Desk", "WebhookServer"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)


__all__ = [
    "AdmissionRequest",
    "Allowed",
    "Answer",
    "Cache",
    "Certificates",
    "Client",
    "ClusterConfig",
    "Controller",
    "Deadman",
    "Denied",
    "Desk",
    "Election",
    "Health",
    "HttpsTransport",
    "LeaseTiming",
    "Limiter",
    "Listing",
    "Metrics",
    "Monitor",
    "Process",
    "Queue",
    "Recorder",
    "Reflector",
    "Request",
    "Response",
    "ServerContext",
    "Snapshot",
    "Store",
    "Transport",
    "Version",
    "WatchEvent",
    "WatchOptions",
    "WatchStats",
    "WebhookServer",
    "configure",
    "in_cluster_config",
    "load_config",
    "logger",
    "own_key",
    "run",
    "settle",
]
