"""Reading files, flags and the environment into one cluster and one identity."""

import base64
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.loopback import write_kubeconfig

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.cluster import (
    ClusterConfig,
    Impersonation,
    in_cluster_config,
    load_config,
)
from zonewise.runtime.config.credentials import CombinedCredentials, Credential, LocalCredentials
from zonewise.runtime.config.exec_plugin import ExecCredentials
from zonewise.runtime.config.oidc import OidcCredentials

EXEC = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "x"}
OIDC = {"name": "oidc", "config": {"idp-issuer-url": "https://i", "client-id": "c"}}


def load(tmp_path: Path, **parts: Any) -> ClusterConfig:
    return load_config(write_kubeconfig(tmp_path / "config", **parts), environ={})


def pod(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "sa"
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_current_context(tmp_path: Path) -> None:
    """The current context gives a server, a namespace and the text for errors."""
    config = load(tmp_path, server="https://k:6443/", context={"namespace": "team"})
    assert config.server == "https://k:6443"
    assert config.namespace == "team"
    assert config.origin == f"context dev of {tmp_path / 'config'}"


def test_arguments_win_over_files(tmp_path: Path) -> None:
    """Context, cluster, user, namespace and impersonation can be given as arguments."""
    path = tmp_path / "config"
    path.write_text(
        "contexts: [{name: a, context: {cluster: c1, user: u1, namespace: n1}}]\n"
        "clusters: [{name: c1, cluster: {server: https://one}},"
        " {name: c2, cluster: {server: https://two}}]\n"
        "users: [{name: u1, user: {as: jane, as-groups: [g]}}, {name: u2, user: {}}]\n"
    )
    config = load_config(path, context="a", environ={})
    assert (config.server, config.namespace) == ("https://one", "n1")
    assert config.impersonation == Impersonation(user="jane", groups=("g",))
    config = load_config(
        path,
        context="a",
        cluster="c2",
        user="u2",
        namespace="n2",
        impersonation=Impersonation(user="joe"),
        environ={},
    )
    assert (config.server, config.namespace) == ("https://two", "n2")
    assert config.impersonation == Impersonation(user="joe")
    assert load_config(path, cluster="c2", environ={}).server == "https://two"


def test_kubeconfig_variable(tmp_path: Path) -> None:
    """KUBECONFIG is used before the home folder, missing files in it are skipped."""
    path = write_kubeconfig(tmp_path / "config", server="https://listed")
    environ = {"KUBECONFIG": f"{tmp_path / 'missing'}:{path}", "HOME": str(tmp_path / "nowhere")}
    assert load_config(environ=environ).server == "https://listed"


def test_home_folder(tmp_path: Path) -> None:
    """Without anything else ~/.kube/config is read."""
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", server="https://home")
    assert load_config(environ={"HOME": str(tmp_path)}).server == "https://home"


async def test_the_pod_we_run_in(tmp_path: Path) -> None:
    """In a pod the service account is used when there is no kubeconfig."""
    folder = pod(tmp_path, token="t\n", ca_crt="CA", namespace="mine\n")
    environ = {
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "6443",
        "HOME": str(tmp_path),
    }
    config = load_config(environ=environ, service_account=folder)
    assert config.server == "https://[fd00::1]:6443"
    assert config.namespace == "mine"
    assert config.trust.pem() == b"CA"
    assert await config.credentials.current() == Credential("Bearer t")
    (folder / "token").write_text("rotated")
    assert await config.credentials.renew(Credential("Bearer t")) == Credential("Bearer rotated")


def test_a_pod_without_a_token(tmp_path: Path) -> None:
    """In a pod without a service account the error names the missing file."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigError, match=r"service account token .*/sa/token: no such file"):
        load_config(environ=environ, service_account=tmp_path / "sa")
    with pytest.raises(ConfigError, match="this is not a pod"):
        in_cluster_config(environ={})


def test_a_kubeconfig_wins_over_the_pod(tmp_path: Path) -> None:
    """KUBECONFIG is used even in a pod."""
    path = write_kubeconfig(tmp_path / "config", server="https://other")
    environ = {"KUBECONFIG": str(path), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert load_config(environ=environ).server == "https://other"


@pytest.mark.parametrize("context", [None, "x"])
def test_nothing_at_all(tmp_path: Path, context: str | None) -> None:
    """Without a kubeconfig and outside of a pod the error says what was tried and what to do."""
    environ = {"HOME": str(tmp_path)}
    says = r"no kubeconfig at .*/\.kube/config and this is not a pod; give one with --kubeconfig"
    with pytest.raises(ConfigError, match=says):
        load_config(environ=environ, context=context)


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A kubeconfig given by name is not skipped, even in a pod."""
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with pytest.raises(ConfigError, match=r"there is no kubeconfig .*/no; give"):
        load_config(tmp_path / "no", environ=environ)


def test_contexts_that_lead_nowhere(tmp_path: Path) -> None:
    """A missing choice, unknown names and missing parts have an error each."""
    path = tmp_path / "config"
    path.write_text("contexts: [{name: a, context: {}}, {name: b, context: {cluster: x}}]\n")
    with pytest.raises(ConfigError, match=r"sets no current-context; .*--context: a, b"):
        load_config(path, environ={})
    with pytest.raises(ConfigError, match='context "a": cluster is missing'):
        load_config(path, context="a", environ={})
    with pytest.raises(ConfigError, match=r'no cluster "x" in .*, which context "b" names'):
        load_config(path, context="b", environ={})
    with pytest.raises(ConfigError, match=r'no cluster "y" in [^,]*; it has no clusters'):
        load_config(path, context="b", cluster="y", environ={})
    path.write_text("")
    with pytest.raises(ConfigError, match="sets no current-context; add one"):
        load_config(path, environ={})


@pytest.mark.parametrize(
    ("server", "cluster", "url"),
    [
        ("https://k", {}, "https://k"),
        ("https://k/k8s/clusters/c-1/", {}, "https://k/k8s/clusters/c-1"),
        ("http://127.0.0.1:8080", {}, "http://127.0.0.1:8080"),
        ("127.0.0.1:8080", {}, "http://127.0.0.1:8080"),
        ("k:6443", {"insecure-skip-tls-verify": True}, "https://k:6443"),
        ("https://[::1]:6443", {}, "https://[::1]:6443"),
    ],
)
def test_addresses(tmp_path: Path, server: str, cluster: dict[str, Any], url: str) -> None:
    """A server may have a path, and a bare host speaks TLS if TLS is configured."""
    assert load(tmp_path, server=server, cluster=cluster).server == url


@pytest.mark.parametrize(
    "server",
    [
        "ftp://k",
        "https://",
        "https://k:port",
        "https://k:0",
        "https://k:99999",
        "https://user:hush@k",
        "https://k?x=1",
        "https://k#x",
        "https://k\tx",
        "https://[::1",
        "://",
    ],
)
def test_invalid_addresses(tmp_path: Path, server: str) -> None:
    """The error names file and cluster, and does not show a password in the address."""
    with pytest.raises(ConfigError, match='cluster "c": server is not an address') as error:
        load(tmp_path, server=server)
    assert "hush" not in str(error.value)


def test_proxies(tmp_path: Path) -> None:
    """proxy-url wins over the environment, which follows NO_PROXY."""
    path = write_kubeconfig(tmp_path / "a", server="https://k", cluster={"proxy-url": "http://p:1"})
    environ = {"HTTPS_PROXY": "http://env:2"}
    assert load_config(path, environ=environ).proxy == "http://p:1"
    path = write_kubeconfig(tmp_path / "b", server="https://k")
    assert load_config(path, environ=environ).proxy == "http://env:2"
    assert load_config(path, environ={**environ, "NO_PROXY": "k"}).proxy is None
    path = write_kubeconfig(tmp_path / "c", cluster={"proxy-url": "socks5://u:hush@p:1"})
    with pytest.raises(ConfigError, match=r"proxy-url for .* must be an http:// or") as error:
        load_config(path, environ={})
    assert "hush" not in str(error.value)


async def identity(tmp_path: Path, **user: Any) -> Credential:
    return await load(tmp_path, user=user).credentials.current()


async def test_plain_credentials(tmp_path: Path) -> None:
    """Tokens, token files and passwords become headers."""
    (tmp_path / "token").write_text("filed")
    assert await identity(tmp_path, token="t") == Credential("Bearer t")
    assert await identity(tmp_path, tokenFile="token") == Credential("Bearer filed")
    assert await identity(tmp_path, token="t", tokenFile="token") == Credential("Bearer filed")
    assert await identity(tmp_path, username="a", password="b") == Credential("Basic YTpi")
    assert await identity(tmp_path) == Credential()


def test_the_source_follows_the_user(tmp_path: Path) -> None:
    """A fixed token beats a plugin; a plugin and a certificate go together."""
    data = base64.b64encode(b"x").decode()
    both = {"client-certificate-data": data, "client-key-data": data}
    kinds: list[tuple[dict[str, Any], type]] = [
        ({"exec": EXEC}, ExecCredentials),
        ({"auth-provider": OIDC}, OidcCredentials),
        ({"exec": EXEC, "token": "t"}, LocalCredentials),
        ({"exec": EXEC, **both}, CombinedCredentials),
        (both, LocalCredentials),
    ]
    for user, kind in kinds:
        assert isinstance(load(tmp_path, user=user).credentials, kind)


async def test_no_credentials_over_plain_http(tmp_path: Path) -> None:
    """Requests to an http server are anonymous, whatever the user has."""
    config = load(tmp_path, server="http://k", user={"token": "t"})
    assert await config.credentials.current() == Credential()


@pytest.mark.parametrize(
    ("part", "fields", "says"),
    [
        ("user", {"tokenFile": "no"}, "cannot read the token file"),
        ("user", {"client-certificate": "no", "client-key": "no"}, "the client certificate"),
        ("cluster", {"certificate-authority": "no"}, "cannot read the certificate authority"),
        ("user", {"token": "a\nb"}, "the bearer token holds characters"),
        ("user", {"as": "a\nb"}, "the user or group to act as holds characters"),
    ],
)
def test_files_and_values_are_checked_at_once(
    tmp_path: Path, part: str, fields: dict[str, str], says: str
) -> None:
    """Missing files and invalid values are reported before anything is sent."""
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, **{part: fields})


def test_impersonation_headers() -> None:
    """Groups and extras are repeated headers; the keys of extras are encoded."""
    acting = Impersonation(
        user="jane",
        uid="7",
        groups=("a", "b"),
        extra=(("example.com/scope", ("x", "y")), ("50%", ("z",))),
    )
    assert acting.headers() == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2Fscope", "x"),
        ("Impersonate-Extra-example.com%2Fscope", "y"),
        ("Impersonate-Extra-50%25", "z"),
    )


def test_no_secret_in_repr(tmp_path: Path) -> None:
    """The repr of a configuration shows no secret."""
    config = load(tmp_path, user={"token": "hush"}, cluster={"proxy-url": "http://u:hush@p:1"})
    assert "hush" not in repr(config)
