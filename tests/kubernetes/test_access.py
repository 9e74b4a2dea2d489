"""Every way to authenticate, against a real API server; and agreement with the real kubectl."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from tests.cli.run_program import apart
from tools.realkube import ControlPlane

from zonewise.api.errors import Unauthorized
from zonewise.runtime.client.client import Client
from zonewise.runtime.client.transport import HttpsTransport
from zonewise.runtime.config.cluster import (
    ClusterConfig,
    Impersonation,
    in_cluster_config,
    load_config,
)
from zonewise.runtime.config.kubeconfig import Kubeconfig

pytestmark = pytest.mark.real

SCRIPTS = Path(sys.executable).parent
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


async def whoami(config: ClusterConfig) -> dict[str, Any]:
    """The user that the server takes us for."""
    async with Client(HttpsTransport(config)) as client:
        answer = await client.raw(
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            headers={"Content-Type": "application/json"},
            body=json.dumps(REVIEW).encode(),
        )
    info: dict[str, Any] = answer.json()["status"]["userInfo"]
    return info


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cluster and the user of a kubeconfig with one of each."""
    content = yaml.safe_load(path.read_text())
    return content["clusters"][0]["cluster"], content["users"][0]["user"]


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any]) -> Path:
    content = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(content))
    return path


def service_account_token(plane: ControlPlane, name: str) -> str:
    plane.kubectl("create", "serviceaccount", name, check=False)
    return plane.kubectl("create", "token", name).stdout.strip()


def test_versions_are_those_of_kubectl(realapi: ControlPlane, tmp_path: Path) -> None:
    """Our Server Version is the one kubectl prints."""
    theirs = realapi.kubectl("version").stdout.splitlines()
    ours = apart(tmp_path, "version", "--kubeconfig", realapi.kubeconfig)
    assert (ours.code, ours.err) == (0, "")
    assert ours.out.splitlines()[1] == next(x for x in theirs if x.startswith("Server Version"))


async def test_a_client_certificate(realapi: ControlPlane, tmp_path: Path) -> None:
    """Certificates in the kubeconfig and in files beside it authenticate us."""
    path = realapi.kubeconfig_for("jane", ["dev"])
    assert (await whoami(load_config(path)))["username"] == "jane"
    cluster, user = parts(path)
    for name in ("client-certificate", "client-key"):
        (tmp_path / name).write_bytes(base64.b64decode(user[f"{name}-data"]))
    (tmp_path / "ca").write_bytes(base64.b64decode(cluster.pop("certificate-authority-data")))
    beside = kubeconfig(
        tmp_path / "config",
        {**cluster, "certificate-authority": "ca"},
        {"client-certificate": "client-certificate", "client-key": "client-key"},
    )
    info = await whoami(load_config(beside))
    assert info["username"] == "jane"
    assert "dev" in info["groups"]


async def test_impersonation(realapi: ControlPlane) -> None:
    """User, uid, groups and extras of an impersonation arrive unchanged."""
    acting = Impersonation(
        user="joe",
        uid="7",
        groups=("a b", "system:authenticated"),
        extra=(("example.com/Scope%", ("x", "y")),),
    )
    info = await whoami(load_config(realapi.kubeconfig, impersonation=acting))
    assert info == {
        "username": "joe",
        "uid": "7",
        "groups": ["a b", "system:authenticated"],
        "extra": {"example.com/scope%": ["x", "y"]},
    }


async def test_the_service_account_of_a_pod(realapi: ControlPlane, tmp_path: Path) -> None:
    """The files of a pod's service account are enough, and a rotated token is picked up."""
    cluster, _ = parts(realapi.kubeconfig)
    token = service_account_token(realapi, "podlike")
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    (tmp_path / "namespace").write_text("default")
    (tmp_path / "token").write_text("expired")
    address = urlsplit(cluster["server"])
    config = in_cluster_config(
        environ={
            "KUBERNETES_SERVICE_HOST": str(address.hostname),
            "KUBERNETES_SERVICE_PORT": str(address.port),
        },
        service_account=tmp_path,
    )
    with pytest.raises(Unauthorized):
        await whoami(config)
    (tmp_path / "token").write_text(token)
    assert (await whoami(config))["username"] == "system:serviceaccount:default:podlike"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("what", ["token", "certificate"])
async def test_exec_plugins(realapi: ControlPlane, tmp_path: Path, version: str, what: str) -> None:
    """A plugin's token or certificate is accepted."""
    cluster, user = parts(realapi.kubeconfig_for("plug", []))
    if what == "token":
        status = {"token": service_account_token(realapi, "plug")}
        expected = "system:serviceaccount:default:plug"
    else:
        status = {
            "clientCertificateData": base64.b64decode(user["client-certificate-data"]).decode(),
            "clientKeyData": base64.b64decode(user["client-key-data"]).decode(),
        }
        expected = "plug"
    kind = f"client.authentication.k8s.io/{version}"
    answer = {"kind": "ExecCredential", "apiVersion": kind, "status": status}
    (tmp_path / "answer").write_text(json.dumps(answer))
    plugin = {
        "apiVersion": kind,
        "command": "cat",
        "args": [str(tmp_path / "answer")],
        "interactiveMode": "Never",
    }
    path = kubeconfig(tmp_path / "config", cluster, {"exec": plugin})
    assert (await whoami(load_config(path)))["username"] == expected
    theirs = realapi.kubectl("auth", "whoami", "-o", "json", kubeconfig=path).stdout
    assert json.loads(theirs)["status"]["userInfo"]["username"] == expected


def test_a_wrong_token(realapi: ControlPlane, tmp_path: Path) -> None:
    """An expired token against a real server is one sentence and exit 2."""
    path = realapi.kubeconfig_with_token("nobody", "expired")
    result = apart(tmp_path, "version", "--kubeconfig", path)
    assert result.code == 2
    assert "does not accept our credentials" in result.sentence()


def test_kubectl_runs_and_completes_us(realapi: ControlPlane, tmp_path: Path) -> None:
    """As a plugin our usage says ``kubectl zonewise``, and kubectl completes our words."""
    script = tmp_path / "kubectl_complete-zonewise"
    script.write_text(apart(tmp_path, "completion", "kubectl").out)
    script.chmod(0o755)
    env = {"PATH": os.pathsep.join([str(tmp_path), str(SCRIPTS), os.defpath])}
    usage = realapi.kubectl("zonewise", "--help", env=env).stdout
    assert usage.startswith("Usage: kubectl zonewise ")
    ours = realapi.kubectl("zonewise", "version", env=env).stdout
    assert "Server Version: v" in ours
    words = realapi.kubectl("__complete", "zonewise", "ver", env=env).stdout
    assert words.startswith("version\t")


def test_files_are_merged_as_kubectl_merges_them(realapi: ControlPlane, tmp_path: Path) -> None:
    """Merging several files, we and kubectl get the same names, values and current context."""
    files = {
        "a": {
            "contexts": [{"name": "one", "context": {"cluster": "c", "namespace": "n1"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": "https://a", "certificate-authority": "ca"}}
            ],
            "users": [{"name": "u", "user": {"client-certificate": "x", "client-key": "../y"}}],
        },
        "deep/b": {
            "current-context": "two",
            "contexts": [
                {"name": "one", "context": {"cluster": "d", "user": "u"}},
                {"name": "two", "context": {"cluster": "d", "user": "v"}},
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": "https://b"}},
                {"name": "d", "cluster": {"server": "https://d", "tls-server-name": "s"}},
            ],
            "users": [
                {"name": "u", "user": {"token": "late"}},
                {"name": "v", "user": {"tokenFile": "t", "as": "w", "as-groups": ["g"]}},
            ],
        },
        "c": {"current-context": "one"},
    }
    paths = []
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content))
        paths.append(path)
    listed = os.pathsep.join(map(str, [paths[0], tmp_path / "missing", *paths[1:]]))
    view = realapi.kubectl("config", "view", "--raw", "-o", "json", env={"KUBECONFIG": listed})
    theirs = json.loads(view.stdout)
    ours = Kubeconfig(paths)
    assert ours.current_context == theirs["current-context"]
    assert set(ours.names("context")) == {item["name"] for item in theirs["contexts"]}
    for item in theirs["contexts"]:
        context = ours.context(item["name"])
        assert context.cluster == item["context"]["cluster"]
        assert context.user == item["context"].get("user", "")
        assert context.namespace == item["context"].get("namespace", "")
    for item in theirs["clusters"]:
        cluster = ours.cluster(item["name"])
        assert cluster.server == item["cluster"]["server"]
        assert cluster.server_name == item["cluster"].get("tls-server-name", "")
    for item in theirs["users"]:
        user = ours.user(item["name"])
        assert user.token == item["user"].get("token", "")
        assert user.act_as == item["user"].get("as", "")
        assert list(user.act_as_groups) == item["user"].get("as-groups", [])
        assert (user.chain is not None) == ("client-certificate" in item["user"])
