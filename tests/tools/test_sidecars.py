"""The sidecars that are built are those that are printed."""

from __future__ import annotations

import re

from tools.sidecars.binary import HERE, PACKAGES, VERSIONS

from zonewise.install import csi


def test_the_built_versions_are_those_that_are_printed() -> None:
    """The modules that go.mod takes have the versions that the programs are stamped with, and the
    printed images have them, too.
    """
    required = dict(re.findall(r"^\s(\S+) (v\S+)", (HERE / "go.mod").read_text(), re.MULTILINE))
    modules = {name: package.partition("/cmd/")[0] for name, package in PACKAGES.items()}
    assert {name: required[module] for name, module in modules.items()} == VERSIONS
    printed = (csi.PROVISIONER, csi.RESIZER, csi.SNAPSHOTTER)
    images = dict(image.rpartition("/")[2].split(":") for image in printed)
    assert images == {name: VERSIONS[name] for name in images} and len(images) == 3
