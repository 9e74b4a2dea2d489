"""The cluster to connect to, and the user: from a kubeconfig, or from the pod we run in.

The order is ``kubectl``'s: the file that was named, else the files of ``KUBECONFIG``, else
``~/.kube/config``, else the service account of the pod. A file that was named must exist. Where
``kubectl`` would fall back to ``localhost:8080``, the error says what to do instead.

Credentials are never sent over plain HTTP: to an ``http://`` server we are anonymous, as
``kubectl`` is.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.credentials import (
    CombinedCredentials,
    Credentials,
    FileContent,
    LocalCredentials,
    basic,
    bearer,
)
from zonewise.runtime.config.egress import proxy_for
from zonewise.runtime.config.exec_plugin import ExecCredentials
from zonewise.runtime.config.kubeconfig import (
    Kubeconfig,
    KubeconfigCluster,
    KubeconfigUser,
    default_files,
)
from zonewise.runtime.config.oidc import OidcCredentials
from zonewise.runtime.config.tls import Trust

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

# What an HTTP header name may hold besides letters and digits.
_HEADER_NAME = "!#$&'*+-.^_`|~"


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """Act as another user, if permitted."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """The request headers that say so; names may repeat."""
        return (
            ("Impersonate-User", self.user),
            *((("Impersonate-Uid", self.uid),) if self.uid else ()),
            *(("Impersonate-Group", group) for group in self.groups),
            *(
                (f"Impersonate-Extra-{quote(key, safe=_HEADER_NAME)}", value)
                for key, values in self.extra
                for value in values
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Where the API server is, how it is verified, and which user we are.

    ``origin`` says where this came from, for sentences: ``context dev of ~/.kube/config``.
    """

    server: str
    origin: str = ""
    namespace: str = "default"
    trust: Trust = field(default_factory=Trust)
    credentials: Credentials = field(default_factory=LocalCredentials, repr=False)
    impersonation: Impersonation | None = None
    proxy: str | None = field(default=None, repr=False)
    compression: bool = True


def load_config(
    kubeconfig: str | Path | None = None,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    namespace: str | None = None,
    impersonation: Impersonation | None = None,
    request_timeout: float | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """The cluster to talk to; arguments win over files.

    ``request_timeout`` also bounds what credentials cost: exec plugins and token refreshes.
    Raises ``ConfigError`` with one sentence that names the file, the entry and what to do.
    """
    files = default_files(environ) if kubeconfig is None else [Path(kubeconfig)]
    config = Kubeconfig(files)
    if kubeconfig is not None and not config.files:
        raise ConfigError(f"there is no kubeconfig {files[0]}; give the path of one that exists")
    if config.files:
        return _from_kubeconfig(
            config,
            context=context,
            cluster=cluster,
            user=user,
            namespace=namespace,
            impersonation=impersonation,
            timeout=request_timeout,
            environ=environ,
        )
    if environ.get("KUBERNETES_SERVICE_HOST") and not (context or cluster or user):
        return in_cluster_config(
            namespace=namespace,
            impersonation=impersonation,
            environ=environ,
            service_account=service_account,
        )
    tried = " or ".join(str(path) for path in files) or "~/.kube/config"
    raise ConfigError(
        f"no cluster is configured: there is no kubeconfig at {tried} and this is not a pod; "
        "give one with --kubeconfig or the KUBECONFIG variable"
    )


def in_cluster_config(
    *,
    namespace: str | None = None,
    impersonation: Impersonation | None = None,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> ClusterConfig:
    """The cluster whose pod we run in, as the pod's service account; its token may rotate."""
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "") or "443"
    if not host:
        raise ConfigError(
            "this is not a pod: KUBERNETES_SERVICE_HOST is not set; use a kubeconfig instead"
        )
    token = FileContent(service_account / "token", purpose="service account token")
    token.read()
    authority = service_account / "ca.crt"
    own = service_account / "namespace"
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return ClusterConfig(
        server=server,
        origin="the pod's service account",
        namespace=namespace or (own.read_text().strip() if own.exists() else "") or "default",
        trust=Trust(
            authority=FileContent(authority, purpose="certificate authority")
            if authority.exists()
            else None
        ),
        credentials=LocalCredentials(token_file=token),
        impersonation=_checked(impersonation),
        proxy=_proxy("", server, environ),
    )


def _from_kubeconfig(
    config: Kubeconfig,
    *,
    context: str | None,
    cluster: str | None,
    user: str | None,
    namespace: str | None,
    impersonation: Impersonation | None,
    timeout: float | None,
    environ: Mapping[str, str],
) -> ClusterConfig:
    files = " and ".join(str(path) for path in config.files)
    name = context or config.current_context
    origin, named_by = f"cluster {cluster} of {files}", ""
    cluster_name, user_name, own_namespace = cluster or "", user or "", ""
    if name:
        chosen = config.context(name)
        origin, named_by = f"context {name} of {files}", f'context "{name}"'
        cluster_name = cluster_name or chosen.cluster
        user_name = user_name or chosen.user
        own_namespace = chosen.namespace
    if not cluster_name:
        if name:
            raise ConfigError(f'{files}: context "{name}": cluster is missing; name one there')
        known = ", ".join(config.names("context")[:8])
        choice = f"choose one with --context: {known}" if known else "add one"
        raise ConfigError(f"{files} sets no current-context; {choice}")
    kubeconfig_cluster = config.cluster(cluster_name, named_by="" if cluster else named_by)
    server = _server(kubeconfig_cluster, files)
    trust = Trust(
        authority=_content(kubeconfig_cluster.authority, "certificate authority"),
        server_name=kubeconfig_cluster.server_name or None,
        verify=kubeconfig_cluster.verify,
    )
    person = config.user(user_name, named_by="" if user else named_by) if user_name else None
    secure = server.startswith("https:")
    trust.pem()
    return ClusterConfig(
        server=server,
        origin=origin,
        namespace=namespace or own_namespace or "default",
        trust=trust,
        credentials=_credentials(person, kubeconfig_cluster, trust, timeout, environ)
        if person is not None and secure
        else LocalCredentials(),
        impersonation=_checked(impersonation or _impersonation(person)),
        proxy=_proxy(kubeconfig_cluster.proxy, server, environ),
        compression=kubeconfig_cluster.compression,
    )


def _credentials(
    user: KubeconfigUser,
    cluster: KubeconfigCluster,
    trust: Trust,
    timeout: float | None,
    environ: Mapping[str, str],
) -> Credentials:
    authorization = None
    if user.token:
        authorization = bearer(user.token)
    elif user.username or user.password:
        authorization = basic(user.username, user.password)
    local = LocalCredentials(
        authorization=authorization,
        token_file=_file(user.token_file, "token file"),
        chain=_content(user.chain, "client certificate"),
        key=_content(user.key, "client key"),
    )
    local.check()
    if authorization is not None or user.token_file is not None:
        return local
    source: Credentials
    if user.plugin is not None:
        cluster_info = _cluster_info(cluster, trust)
        source = ExecCredentials(
            user.plugin, user=user.name, cluster=cluster_info, timeout=timeout, environ=environ
        )
    elif user.oidc is not None:
        source = OidcCredentials(user.oidc, user=user.name, timeout=timeout, environ=environ)
    else:
        return local
    return source if user.chain is None else CombinedCredentials(source, local)


def _cluster_info(cluster: KubeconfigCluster, trust: Trust) -> dict[str, object]:
    """The cluster information for an exec plugin, in the fields of its protocol."""
    authority = trust.pem()
    info: dict[str, object] = {
        "server": cluster.server,
        "tls-server-name": cluster.server_name,
        "insecure-skip-tls-verify": not cluster.verify,
        "certificate-authority-data": base64.b64encode(authority or b"").decode(),
        "proxy-url": cluster.proxy,
        "disable-compression": not cluster.compression,
        "config": cluster.extension,
    }
    return {key: value for key, value in info.items() if value}


def _server(cluster: KubeconfigCluster, files: str) -> str:
    server = cluster.server
    if "://" not in server:
        # A host without a scheme is legacy; it uses TLS if anything about TLS is configured.
        secure = cluster.authority is not None or not cluster.verify
        server = f"{'https' if secure else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or "@" in parts.netloc or not server.isprintable():
        raise ConfigError(
            f'{files}: cluster "{cluster.name}": server is not an address; '
            "write it like https://host:6443"
        )
    return server.rstrip("/")


def _proxy(configured: str, server: str, environ: Mapping[str, str]) -> str | None:
    proxy = configured or proxy_for(server, environ)
    if not proxy:
        return None
    try:
        parts = urlsplit(proxy)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        source = "proxy-url" if configured else "the proxy in the environment"
        raise ConfigError(
            f"{source} for {server} must be an http:// or https:// address; "
            "other kinds of proxy are not supported, remove it or use an HTTP one"
        )
    return proxy


def _impersonation(user: KubeconfigUser | None) -> Impersonation | None:
    if user is None or not user.act_as:
        return None
    return Impersonation(
        user=user.act_as, uid=user.act_as_uid, groups=user.act_as_groups, extra=user.act_as_extra
    )


def _checked(impersonation: Impersonation | None) -> Impersonation | None:
    if impersonation is not None and not all(
        value.isprintable() for _, value in impersonation.headers()
    ):
        raise ConfigError(
            "the user or group to act as holds characters that no HTTP header can carry; "
            "correct --as, --as-group or the kubeconfig"
        )
    return impersonation


def _content(source: bytes | Path | None, purpose: str) -> bytes | FileContent | None:
    return FileContent(source, purpose=purpose) if isinstance(source, Path) else source


def _file(path: Path | None, purpose: str) -> FileContent | None:
    return None if path is None else FileContent(path, purpose=purpose)
