"""What `zonewise up` prints when its cluster is ready."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from zonewise.cli.local.hosting import introduce
from zonewise.explain.status import summarize_cluster

PAGE = summarize_cluster(nodes=[], pods=[], services=[], slices=[], traffic={})


def print_page(dig: str) -> list[str]:
    """The lines on a terminal of forty columns."""
    console = Console(width=40, color_system=None)
    with console.capture() as captured:
        introduce(
            console,
            PAGE,
            address="https://127.0.0.1:40000",
            kubeconfig=Path("/data/kubeconfig"),
            differences=(),
            missing=(),
            dig=dig,
            packets=(),
        )
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("dig", "meaning"),
    [
        (
            "dig @127.0.0.1 -p 5353 orders.shop.svc +subnet=10.0.0.2/32",
            "the answer that this pod gets",
        ),
        ("dig @127.0.0.1 -p 5353 kubernetes.default.svc.cluster.local", "a name of the cluster"),
    ],
)
def test_commands_can_be_copied_from_a_narrow_terminal(dig: str, meaning: str) -> None:
    """A command and an address are on one line, however long, with a comment below."""
    lines = print_page(dig)
    assert lines[0].endswith("at https://127.0.0.1:40000")
    at = lines.index(f"  {dig}")
    assert lines[at + 1] == f"    # {meaning}: docs/dns.md"
