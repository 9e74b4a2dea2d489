"""Commands that run until they are stopped: a program on the cluster that the flags mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonewise.cli.program.options import Options
    from zonewise.runtime.process.process import Process
    from zonewise.runtime.program.serving import Assemble, ProgramSettings


def run_command(options: Options, settings: ProgramSettings, assemble: Assemble) -> int:
    """Run a program until a signal; gives the exit code."""
    from zonewise.cli.program.connection import connected
    from zonewise.runtime.process.logs import configure
    from zonewise.runtime.process.process import run
    from zonewise.runtime.program.serving import serve

    options = options.serving()
    configure(verbosity=options.verbose, format=options.log_format)

    async def main(process: Process) -> None:
        process.ready = True
        async with connected(options) as client:
            await serve(process, client.transport, settings, assemble)

    return run(main)
