"""Debian's Ceph modules in an environment: linked if they fit, otherwise one message."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.ceph.bindings import MODULES, link


def test_modules_that_fit_are_linked(tmp_path: Path) -> None:
    """All modules that fit become links to Debian's, and linking again changes nothing."""
    debian, target = tmp_path / "debian", tmp_path / "platlib"
    debian.mkdir()
    target.mkdir()
    for name in MODULES:
        (debian / f"{name}.one.so").touch()
    assert link(debian, target, ".one.so") == 0
    assert link(debian, target, ".one.so") == 0
    assert sorted(path.readlink() for path in target.iterdir()) == sorted(debian.iterdir())


@pytest.mark.parametrize(
    ("there", "words"), [("", "apt-get install python3-rados"), (".two.so", "/usr/bin/python3")]
)
def test_modules_that_do_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], there: str, words: str
) -> None:
    """Missing modules, and those of another Python, are reported in one line."""
    if there:
        (tmp_path / f"rados{there}").touch()
    assert link(tmp_path, tmp_path, ".one.so") == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
