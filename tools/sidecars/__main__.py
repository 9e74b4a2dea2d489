"""`python -m tools.sidecars build`: build the official sidecars unless they are there."""

from __future__ import annotations

import argparse

from tools.sidecars.binary import sidecars


def main() -> None:
    top = argparse.ArgumentParser(prog="python -m tools.sidecars", description=__doc__)
    top.add_argument("command", choices=("build",))
    top.parse_args()
    print(sidecars().folder)


if __name__ == "__main__":
    main()
