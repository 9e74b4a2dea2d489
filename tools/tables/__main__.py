"""`python -m tools.tables`: read the facts from a real API server and write the tables."""

from __future__ import annotations

import argparse
import sys

from tools.realkube import RealKubeError
from tools.tables.generation import ROOT, connect, outdated, start, tables


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tools.tables", description=__doc__)
    options.add_argument(
        "--check", action="store_true", help="write nothing; fail if a table is out of date"
    )
    given = options.parse_args()
    try:
        with start() as cluster, connect(cluster) as server:
            generated = tables(server)
    except (RealKubeError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    old = outdated(generated)
    for name in old:
        print(f"{name} {'is out of date' if given.check else 'written'}")
        if not given.check:
            (ROOT / name).write_bytes(generated[name])
    return int(bool(old) and given.check)


if __name__ == "__main__":
    sys.exit(main())
