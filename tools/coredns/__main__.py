"""`python -m tools.coredns`: build CoreDNS, or record what it answers.

`build` builds it unless it is there. `record FILE` asks it every question of `questions.py` about
the cluster there and writes the answers, which tests compare ours with.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tools.coredns.binary import coredns
from tools.coredns.recording import record, write


def main() -> None:
    top = argparse.ArgumentParser(prog="python -m tools.coredns", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build CoreDNS unless it is there")
    recording = commands.add_parser("record", help="ask CoreDNS everything and keep the answers")
    recording.add_argument("file", type=Path)
    given = top.parse_args()
    if given.command == "build":
        print(coredns())
        return
    recorded = asyncio.run(record())
    write(given.file, recorded)
    services = sum(item["kind"] == "Service" for item in recorded["objects"])
    print(f"{len(recorded['answers'])} questions about {services} Services: {given.file}")


if __name__ == "__main__":
    main()
