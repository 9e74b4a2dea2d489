"""From the global flags to a client for their cluster, or to a program that runs on it.

Reading the configuration, connecting and requests are bounded by ``--request-timeout`` each. The
client does not know which configuration is wrong; that is added to its errors here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from zonewise.api.errors import ConfigError, ProtocolError, Unauthorized
from zonewise.cli.program.options import Options
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import ClusterConfig, Impersonation, load_config
from zonewise.runtime.process.logs import configure

if TYPE_CHECKING:
    from zonewise.runtime.process.process import Process
    from zonewise.runtime.program.serving import Assemble, ProgramSettings

EMBEDDED = "+zonewise"
"""What is in the version of an embedded cluster's server."""


@asynccontextmanager
async def connect(options: Options) -> AsyncIterator[Client]:
    """A client for the cluster that the flags name; closed at the end."""
    if options.verbose or options.log_format != "text":
        configure(verbosity=options.verbose, format=options.log_format)
    config = load_cluster_config(options)
    timeout = options.request_timeout
    if timeout is None:
        transport = HttpsTransport(config)
    else:
        transport = HttpsTransport(config, request_timeout=timeout, connect_timeout=timeout)
    try:
        yield Client(transport)
    except Unauthorized as error:
        raise ConfigError(
            f"{config.server} ({config.origin}) does not accept our credentials; "
            "they may have expired: log in again or choose another user"
        ) from error
    except ProtocolError as error:
        if config.server in str(error):
            raise
        raise ProtocolError(
            f"{config.server} ({config.origin}) does not answer as a Kubernetes API server: "
            f"{error}; check the server address in the kubeconfig"
        ) from error
    finally:
        await transport.close()


def load_cluster_config(options: Options) -> ClusterConfig:
    """The configuration of the cluster that the flags name."""
    impersonation = None
    if options.act_as:
        impersonation = Impersonation(
            user=options.act_as, uid=options.act_as_uid or "", groups=options.act_as_groups
        )
    elif options.act_as_groups or options.act_as_uid:
        raise ConfigError("--as-group and --as-uid need --as; give --as the user to act as")
    return load_config(
        options.kubeconfig or None,
        context=options.context,
        cluster=options.cluster,
        user=options.user,
        namespace=options.namespace,
        impersonation=impersonation,
        request_timeout=options.request_timeout,
    )


def run_program(options: Options, settings: ProgramSettings, assemble: Assemble) -> int:
    """Run a program on the cluster that the flags name, until a signal; gives the exit code."""
    from zonewise.runtime.process.process import run
    from zonewise.runtime.program.serving import serve

    options = options.for_serving()
    configure(verbosity=options.verbose, format=options.log_format)

    async def main(process: Process) -> None:
        process.ready = True
        async with connect(options) as client:
            await serve(process, client.transport, settings, assemble)

    return run(main)
