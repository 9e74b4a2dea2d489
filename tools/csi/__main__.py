"""`python -m tools.csi`: `generate` writes the messages, `build` builds csi-sanity."""

from __future__ import annotations

import argparse

from tools.csi.binary import csi
from tools.csi.generate import write


def main() -> None:
    top = argparse.ArgumentParser(prog="python -m tools.csi", description=__doc__)
    top.add_argument("command", choices=("build", "generate"))
    if top.parse_args().command == "build":
        print(csi().folder)
        return
    changed = write()
    print(f"changed: {', '.join(path.name for path in changed)}" if changed else "nothing changed")


if __name__ == "__main__":
    main()
