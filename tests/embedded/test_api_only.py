"""``zonewise up --api-only``: what the server does without controllers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.embedded.apiserver.program import running

pytestmark = pytest.mark.system


def test_addresses_of_both_families(tmp_path: Path) -> None:
    """A Service that requires two families gets two ClusterIPs."""
    spec = {"ports": [{"port": 80}], "ipFamilyPolicy": "RequireDualStack"}
    with running(tmp_path / "data") as program:
        body = {"metadata": {"name": "s"}, "spec": spec}
        service = program.ask("POST", "/api/v1/namespaces/default/services", body)
    assert [":" in address for address in service["spec"]["clusterIPs"]] == [False, True]


def test_a_new_namespace_gets_its_account_and_no_other(tmp_path: Path) -> None:
    """A new namespace gets one ServiceAccount more than with a bare kube-apiserver:
    docs/embedded-reference.md.
    """
    path = "/api/v1/namespaces/new/serviceaccounts"
    with running(tmp_path / "data") as program:
        program.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "new"}})
        while not (accounts := program.ask("GET", path)["items"]):
            pass
        assert [account["metadata"]["name"] for account in accounts] == ["default"]
        program.ask("POST", path, {"metadata": {"name": "robot"}})
        names = [account["metadata"]["name"] for account in program.ask("GET", path)["items"]]
    assert names == ["default", "robot"]
