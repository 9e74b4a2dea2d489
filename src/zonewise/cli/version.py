"""``zonewise version``: the versions of this program and of the server of the context."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

import click

from zonewise.cli.program import interrupts
from zonewise.cli.program.command import Command
from zonewise.cli.program.options import Options, add_options, output_option
from zonewise.cli.program.screen import render


@click.command(
    "version",
    cls=Command,
    examples=(
        "version --client           # without a server",
        "version -o json            # everything, for programs",
        "version --context staging  # check that a cluster answers",
    ),
)
@click.option("--client", "client_only", is_flag=True, help="Show this program's version only.")
@add_options(output_option("json", "yaml"))
@click.pass_obj
def command(options: Options, client_only: bool, output: str | None) -> None:
    """Show the versions of this program and of the cluster's API server.

    If the server does not answer, the client's version is still printed, and the exit code is 2.
    """
    versions: dict[str, Any] = {"clientVersion": _describe_client()}
    try:
        if not client_only:
            versions["serverVersion"] = interrupts.run(_read_server(options))
    except Exception:
        click.echo(_format_versions(versions, output))
        raise
    click.echo(_format_versions(versions, output))


async def _read_server(options: Options) -> dict[str, Any]:
    from zonewise.api.errors import NotFound, ProtocolError
    from zonewise.cli.program.connection import connect

    async with connect(options) as client:
        try:
            answer = (await client.raw("GET", "/version")).json()
        except NotFound as error:
            raise ProtocolError("it has no /version") from error
        if not isinstance(answer, dict) or not isinstance(answer.get("gitVersion"), str):
            raise ProtocolError("its /version names no version")
        return answer


def _describe_client() -> dict[str, str]:
    return {
        "version": version("zonewise"),
        "pythonVersion": platform.python_version(),
        "platform": f"{platform.system()}/{platform.machine()}".lower(),
    }


def _format_versions(versions: dict[str, Any], output: str | None) -> str:
    if output is not None:
        return render(versions, output)
    lines = [f"Client Version: {versions['clientVersion']['version']}"]
    if "serverVersion" in versions:
        lines.append(f"Server Version: {versions['serverVersion']['gitVersion']}")
    return "\n".join(lines)
