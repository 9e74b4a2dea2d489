"""``zonewise up --scenario``: a scenario on a cluster of its own, line by line.

At speed ``max`` hours pass in seconds, and the cluster has no clients. At any other speed the
cluster also serves, and its kubeconfig is the first line.
"""

from __future__ import annotations

import asyncio
import time
from math import inf

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.cli.local.composition import open_folder_driver
from zonewise.cli.local.hosting import Content, make_difference_table
from zonewise.cli.program.screen import clean_cell, make_console
from zonewise.embedded.leftovers.folders import temporary_folder
from zonewise.embedded.scenario.player import play_scenario
from zonewise.embedded.scenario.scenario import load_scenario
from zonewise.embedded.scenario.virtual_time import VirtualTimeLoop

_FASTEST = 1000.0
_VERDICTS = {
    True: "\n[green]All expectations were met.[/green]",
    False: "\n[red]Not all expectations were met: see the lines with ✗.[/red]",
}
_STYLES = {"✓": "green", "✗": "bold red", "→": "bold"}


def play(file: str, speed: str, gates: FeatureGates, dump: Content | None = None) -> int:
    """Play the scenario in a file, on a dump if given; 0 if all expectations were met, else 1."""
    scenario = load_scenario(file)
    factor = _parse_speed(speed)
    console = make_console()

    def print_line(line: str) -> None:
        style = next((style for sign, style in _STYLES.items() if sign in line[:10]), "")
        console.print(clean_cell(line), style=style, soft_wrap=True)

    async def main() -> bool:
        loop, began = asyncio.get_running_loop(), time.time()
        with temporary_folder() as folder:
            return await play_scenario(
                scenario,
                folder,
                clock=lambda: began + loop.time(),
                print_line=print_line,
                gates=gates,
                volumes=open_folder_driver,
                serve=factor != inf,
                dump=None if dump is None else dump.objects,
            )

    if scenario.about:
        console.print(clean_cell(scenario.about), style="bold")
        console.print()
    if dump is not None and (table := make_difference_table(dump.notes)):
        console.print(table)
        console.print()
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(factor)) as runner:
        passed = runner.run(main())
    console.print(_VERDICTS[passed])
    return 0 if passed else 1


def _parse_speed(speed: str) -> float:
    if speed == "max":
        return inf
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor <= _FASTEST:
        raise ConfigError(
            f'--speed {speed} is not a speed; give a number up to {_FASTEST:g}, or "max"'
        )
    return factor
