"""The printed policies refuse what our accounts could do beyond what their programs do."""

from __future__ import annotations

import pytest
from tests.embedded.virtual_cluster import virtual_cluster
from tests.install.attacks import ATTACKS, WANTED, WORK, Try, victims
from tests.install.enforced import enforce
from tests.install.test_rights import GROUPS, create

from zonewise.api.errors import Forbidden
from zonewise.apiserver.http.local_transport import LocalTransport
from zonewise.apiserver.request.call import User
from zonewise.install import Obj, manifests
from zonewise.install.expressions import account
from zonewise.runtime.client.client import Client

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


async def tried(attempt: Try, *, policies: bool = True) -> Obj:
    """What comes of a request on a cluster where everything is installed."""
    async with virtual_cluster({}) as cluster:
        await create(cluster, manifests(WANTED))
        await create(cluster, victims())
        if policies:
            enforce(cluster.server, manifests(WANTED))
        user = User(account(WANTED, attempt.account), GROUPS)
        client = Client(LocalTransport(cluster.server.handle, user))
        return await attempt.send(client, cluster.client)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
async def test_an_attack_is_refused(attack: Try) -> None:
    """Roles allow it, and a policy does not."""
    assert await tried(attack, policies=False)
    with pytest.raises(Forbidden, match=r"Zonewise's (controller|webhook) may"):
        await tried(attack)


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.what)
async def test_work_is_allowed(work: Try) -> None:
    """What the programs do passes."""
    assert await tried(work)
