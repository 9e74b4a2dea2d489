"""``zonewise up --scenario``: a scenario on a cluster of its own, line by line.

At speed ``max`` nothing waits and there is no access from outside: hours pass in seconds. At any
other speed the cluster also serves, and its kubeconfig is the first line.
"""

from __future__ import annotations

import asyncio
import time
from math import inf

from zonewise.api.errors import ConfigError
from zonewise.api.gates import FeatureGates
from zonewise.cli.local.composition import folder_driver
from zonewise.cli.local.hosting import Content, difference_table
from zonewise.cli.program.screen import cell, console
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
    """Play the scenario in a file, on a dump if given; 0 if all expectations held, else 1."""
    scenario = load_scenario(file)
    factor = _factor(speed)
    page = console()

    def say(line: str) -> None:
        style = next((style for sign, style in _STYLES.items() if sign in line[:10]), "")
        page.print(cell(line), style=style, soft_wrap=True)

    async def main() -> bool:
        loop, began = asyncio.get_running_loop(), time.time()
        with temporary_folder() as folder:
            return await play_scenario(
                scenario,
                folder,
                clock=lambda: began + loop.time(),
                print_line=say,
                gates=gates,
                volumes=folder_driver,
                serve=factor != inf,
                dump=None if dump is None else dump.objects,
            )

    if scenario.about:
        page.print(cell(scenario.about), style="bold")
        page.print()
    if dump is not None and (table := difference_table(dump.notes)):
        page.print(table)
        page.print()
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(factor)) as runner:
        fine = runner.run(main())
    page.print(_VERDICTS[fine])
    return 0 if fine else 1


def _factor(speed: str) -> float:
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
