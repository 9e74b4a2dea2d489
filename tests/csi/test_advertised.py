"""What nodes report about a takeover: nothing by default; with --advertise-takeover its keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.csi.scene import DRIVER, KEY, LABELS, config, segments

from zonewise.csi.driver import open_data_folder, open_driver
from zonewise.csi.node_domain import FixedDomain
from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.calls import run_inline
from zonewise.csi.transport.client import InProcessClient
from zonewise.storage.configuration import parse_configuration
from zonewise.storage.domains import parse_domain_labels

DOMAINS = parse_domain_labels(LABELS, DRIVER)


@pytest.mark.asyncio
@pytest.mark.parametrize("advertise", [False, True])
async def test_keys_are_constant_by_default(tmp_path: Path, advertise: bool) -> None:
    """A changed takeover map is reported at once and as a whole, or not at all."""
    current = [parse_configuration(config(), DOMAINS)]
    data = open_data_folder(tmp_path / "data", privileged=False)
    driver = open_driver(
        DRIVER,
        data,
        DOMAINS,
        lambda: current[0],
        node_id="n",
        domain=FixedDomain({"region": "r1", "zone": "b"}),
        worker=run_inline,
        advertise_takeover=advertise,
    )
    client = InProcessClient(driver.calls)

    async def read_segments() -> dict[str, str]:
        answer = await client.call(methods.NODE_GET_INFO, csi.NodeGetInfoRequest())
        return dict(answer.accessible_topology.segments)

    assert await read_segments() == segments("b")
    takeover = {"topology-takeover": {"a": ["b"], "r2/x": ["all"]}}
    current[0] = parse_configuration(config(**takeover), DOMAINS)
    more = {f"{KEY}/takeover.r1.a": "true", f"{KEY}/takeover.r2.x": "true"}
    assert await read_segments() == segments("b") | (more if advertise else {})
    current[0] = parse_configuration(config(), DOMAINS)
    assert await read_segments() == segments("b")
    data.close()
