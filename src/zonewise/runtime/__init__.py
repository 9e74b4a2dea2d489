"""What controllers run on: client, watch, store, queue, controller, program, election, metrics.

``docs/runtime.md`` is the guide. The names below are the public ones. Each module is imported when
its first name is used, because a program that only reads a kubeconfig should not wait for an HTTP
library; type checkers read the import statements.
"""

from __future__ import annotations

from importlib import import_module
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
    from zonewise.runtime.process.memory import freeze_heap as freeze_heap
    from zonewise.runtime.process.process import Process as Process
    from zonewise.runtime.process.process import run as run
    from zonewise.runtime.program.context import ControllerContext as ControllerContext
    from zonewise.runtime.program.program import Program as Program
    from zonewise.runtime.program.serving import LeaseSettings as LeaseSettings
    from zonewise.runtime.program.serving import ProgramSettings as ProgramSettings
    from zonewise.runtime.program.serving import run_program as run_program
    from zonewise.runtime.program.serving import serve as serve
    from zonewise.runtime.webhook.admission import AdmissionRequest as AdmissionRequest
    from zonewise.runtime.webhook.admission import Allowed as Allowed
    from zonewise.runtime.webhook.admission import Denied as Denied
    from zonewise.runtime.webhook.certificates import Certificates as Certificates
    from zonewise.runtime.webhook.server import AdmissionDispatcher as AdmissionDispatcher
    from zonewise.runtime.webhook.server import WebhookServer as WebhookServer
    from zonewise.runtime.webhook.server_context import ServerContext as ServerContext

_NAMES = {
    "cache.cache": "Cache",
    "cache.reflector": "Reflector",
    "cache.snapshot": "Snapshot",
    "cache.store": "Store",
    "client.client": "Client Listing Version",
    "client.exchange": "RequestResult",
    "client.limiter": "Limiter",
    "client.transport": "HttpsTransport Request Response Transport",
    "client.watch": "WatchEvent WatchOptions WatchStats",
    "config.cluster": "ClusterConfig in_cluster_config load_config",
    "controller.controller": "Controller own_key",
    "controller.queue": "Queue",
    "controller.recorder": "Recorder",
    "election.deadman": "Deadman",
    "election.election": "Election LeaseTiming",
    "monitoring.health": "Health",
    "monitoring.metrics": "Metrics",
    "monitoring.monitor": "Monitor",
    "process.logs": "configure logger",
    "process.memory": "freeze_heap",
    "process.process": "Process run",
    "program.context": "ControllerContext",
    "program.program": "Program",
    "program.serving": "LeaseSettings ProgramSettings run_program serve",
    "webhook.admission": "AdmissionRequest Allowed Denied",
    "webhook.certificates": "Certificates",
    "webhook.server": "AdmissionDispatcher WebhookServer",
    "webhook.server_context": "ServerContext",
}
"""The public names by their module."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
