"""An attacker with one of our service accounts can do what its program does, and no more.

This is tested on real Kubernetes. Roles allow every request here, so the printed policies refuse.
That the programs work with the policies in force is in the tests that run them, with the same
manifests: ``test_domain_budgets``, ``test_adopt``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import yaml
from tests.install.attacks import ATTACKS, INSTALLATION, WORK, Try, victims
from tests.kubernetes.installed import PATIENCE, Installed

from tools import realkube as real
from zonewise.api.errors import Forbidden
from zonewise.install.installation import NAME, WEBHOOK, Obj
from zonewise.install.manifests import render_manifests
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import load_config

pytestmark = [pytest.mark.real, pytest.mark.timeout(600), pytest.mark.asyncio]

PRINTED = (
    *("Namespace", "CustomResourceDefinition", "ServiceAccount", "NetworkPolicy"),
    *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    *("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"),
)
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
NO_TOKEN = {"apiVersion": "v1", "kind": "ServiceAccount"}


def _of(kinds: tuple[str, ...]) -> list[Obj]:
    return [item for item in render_manifests(INSTALLATION) if item["kind"] in kinds]


def _applied(plane: real.ControlPlane, objects: list[Obj], verb: str = "apply") -> None:
    plane.kubectl(verb, "-f", "-", stdin=yaml.safe_dump_all(objects))


class Taken:
    """Our accounts as an attacker would use them."""

    def __init__(self, owner: Client, accounts: dict[str, Client]) -> None:
        self._owner = owner
        self._accounts = accounts

    async def tried(self, attempt: Try) -> Obj:
        """The answer to a request."""
        return await attempt.send(self._accounts[attempt.account], self._owner)

    async def refusal(self, attack: Try) -> str:
        """The message of a refusal; a policy is in force a moment after it was written."""
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await self.tried(attack)
                except Forbidden as error:
                    return str(error)
                await asyncio.sleep(0.1)


@asynccontextmanager
async def taken(plane: real.ControlPlane) -> AsyncIterator[Taken]:
    """A cluster with everything but the policies, and both accounts."""
    account = NO_TOKEN | {"metadata": {"name": "default", "namespace": "kube-system"}}
    created = [account, *victims()]
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(
            Client(HttpsTransport(load_config(plane.kubeconfig)))
        )
        await asyncio.to_thread(_applied, plane, _of(("CustomResourceDefinition",)))
        for definition in _of(("CustomResourceDefinition",)):
            name = definition["metadata"]["name"]
            wait = ("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
            await asyncio.to_thread(plane.kubectl, *wait)
        await asyncio.to_thread(_applied, plane, created)
        await asyncio.to_thread(_applied, plane, _of(PRINTED))
        installed = Installed(plane, owner, INSTALLATION.namespace)
        try:
            accounts = {}
            for name in (NAME, WEBHOOK):
                config = load_config(await installed.kubeconfig(name))
                accounts[name] = await stack.enter_async_context(Client(HttpsTransport(config)))
            yield Taken(owner, accounts)
        finally:
            shared = ("CustomResourceDefinition",)
            gone = [item for item in (*_of(PRINTED), *_of(POLICIES)) if item["kind"] not in shared]
            deletion = "delete", "--ignore-not-found", "--wait=false", "-f", "-"
            text = yaml.safe_dump_all([*victims(), *gone])
            await asyncio.to_thread(plane.kubectl, *deletion, stdin=text)


async def test_attacks_are_refused_and_work_is_not(realapi: real.ControlPlane) -> None:
    """Without the policies every attack succeeds; with them none does, and the programs' own
    requests do.
    """
    async with taken(realapi) as accounts:
        for attack in ATTACKS:
            assert await accounts.tried(attack), attack.what
        await asyncio.to_thread(_applied, realapi, _of(POLICIES))
        for attack in ATTACKS:
            words = await accounts.refusal(attack)
            assert "ValidatingAdmissionPolicy 'zonewise-" in words, attack.what
            assert "Zonewise's " in words, attack.what
        for work in WORK:
            assert await accounts.tried(work), work.what
