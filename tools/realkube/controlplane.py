"""A real Kubernetes control plane on loopback, in a folder that is removed with it.

Order of start: etcd until it is healthy, kube-apiserver until it is ready, then
kube-controller-manager and kube-scheduler at once; started earlier they would give up after ten
seconds, which a busy machine may need. `start` returns when the API server is ready, every other
component is healthy and, where its controller runs, the namespace `default` has the service account
that pods need. Nothing is retried: ports cannot be taken by others (see `Port`), so a component
that ends while starting is an error, reported with the end of its log.

The cluster has the defaults of a new one: TLS from its own authority, Node and RBAC authorization,
service account tokens, priority and fairness on. Two differences are deliberate. Clients of the API
server inside the control plane may send 500 requests per second, because their defaults (20, 50)
would limit every measurement. Without the service account controller the ServiceAccount admission
plugin is off, because otherwise no pod could ever be created.

Everything here blocks; tests use it from fixtures, asynchronous code through the kubeconfig.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import functools
import http.client
import json
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.realkube.binaries import Binaries, build
from tools.realkube.certificates import (
    Authority,
    private_key,
    private_pem,
    public_pem,
    write_private,
)
from tools.realkube.component import Component, Guard, Port
from tools.realkube.errors import RealKubeError, tail

START_TIMEOUT = 60.0
ADMIN = "zonewise-admin"
SERVICE_CIDR = "10.96.0.0/12"
SERVER_NAMES = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
SERVER_ADDRESSES = ("127.0.0.1", "10.96.0.1")
# The Service `kubernetes` must not point to loopback; no server has this documentation address.
ADVERTISED = "192.0.2.1"
FAST_CLIENT = ("--kube-api-qps=500", "--kube-api-burst=1000")
OPEN_PATHS = "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics"


@dataclass(frozen=True)
class Token:
    """A bearer token that the API server accepts, and its user."""

    token: str
    user: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What runs and how. Arguments given here replace ours of the same name.

    `controllers` is kube-controller-manager's own list; empty means that it does not run.
    `audit` is the list of rules of an audit policy, `({"level": "Metadata"},)` for everything.
    `fsync=False` lets etcd answer before its log is on disk: quicker, never for a benchmark.
    """

    controllers: tuple[str, ...] = ("*",)
    scheduler: bool = True
    fsync: bool = True
    tokens: tuple[Token, ...] = ()
    audit: tuple[Mapping[str, object], ...] = ()
    etcd_args: tuple[str, ...] = ()
    apiserver_args: tuple[str, ...] = ()
    controller_manager_args: tuple[str, ...] = ()
    scheduler_args: tuple[str, ...] = ()

    @property
    def service_accounts(self) -> bool:
        """Whether the controller that creates the service account `default` runs."""
        names = {"serviceaccount", "serviceaccount-controller"}
        if names & set(self.controllers):
            return True
        return "*" in self.controllers and not {f"-{name}" for name in names} & set(
            self.controllers
        )


FULL = Settings()
LIGHT = Settings(controllers=(), scheduler=False)


def start(
    settings: Settings = FULL,
    *,
    folder: Path | None = None,
    keep: bool = False,
    binaries: Binaries | None = None,
) -> ControlPlane:
    """Start a control plane; use it as a context manager or call `stop`.

    The folder, a temporary one unless named, must be absent or empty. It is removed at the end
    unless `keep`; with `keep` the logs, the kubeconfig and etcd's data stay.
    """
    programs = binaries or build()
    home = prepare(folder)
    undo = contextlib.ExitStack()
    try:
        guard = Guard(*([] if keep else [home]))
        undo.callback(guard.release)
        plane = ControlPlane(settings, folder=home, guard=guard, binaries=programs, undo=undo)
        plane.launch()
    except BaseException:
        undo.close()
        raise
    return plane


class ControlPlane:
    """A running control plane. Its public attributes are all a test needs to reach it."""

    def __init__(
        self,
        settings: Settings,
        *,
        folder: Path,
        guard: Guard,
        binaries: Binaries,
        undo: contextlib.ExitStack,
    ) -> None:
        """Prepare everything; called by `start`, which cleans up if this fails."""
        self.settings = settings
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.audit_log = folder / "audit.log"
        self._guard = guard
        self.binaries = binaries
        self._undo = undo
        self._pki = self.folder / "pki"
        self._pki.mkdir()
        self._authority = Authority(self._pki)
        self.certificate_authority = self._authority.certificate_file
        self._etcd_port = self._port()
        self._server_port = self._port()
        self.url = f"https://127.0.0.1:{self._server_port}"
        self._write_credentials()
        self._context = ssl.create_default_context(cafile=str(self.certificate_authority))
        self._context.load_cert_chain(self._pki / "admin.crt", self._pki / "admin.key")
        self.etcd = self._component("etcd", self._etcd_arguments())
        self.apiserver = self._component("kube-apiserver", self._apiserver_arguments())
        self.controller_manager: Component | None = None
        self.scheduler: Component | None = None
        self._health: dict[str, Port] = {}
        if settings.controllers:
            self.controller_manager = self._component(
                "kube-controller-manager", self._controller_manager_arguments()
            )
        if settings.scheduler:
            self.scheduler = self._component("kube-scheduler", self._scheduler_arguments())

    @property
    def components(self) -> list[Component]:
        """All programs of this control plane, in the order they start."""
        optional = (self.controller_manager, self.scheduler)
        return [
            self.etcd,
            self.apiserver,
            *(process for process in optional if process is not None),
        ]

    def launch(self) -> None:
        """Start everything and return when it serves."""
        deadline = time.monotonic() + START_TIMEOUT

        def left() -> float:
            return max(deadline - time.monotonic(), 0.0)

        self.etcd.start()
        self.etcd.wait(self._etcd_healthy, timeout=left())
        self.apiserver.start()
        self.apiserver.wait(self._apiserver_ready, timeout=left())
        for component in self.components[2:]:
            component.start()
        for component in self.components[2:]:
            healthy = functools.partial(self._healthy, self._health[component.name])
            component.wait(healthy, timeout=left())
        if self.controller_manager is not None and self.settings.service_accounts:
            self.controller_manager.wait(self._service_account_exists, timeout=left())

    def restart_apiserver(self) -> None:
        """End the API server if it runs and start it again, same port, same certificates."""
        self.apiserver.stop()
        self.apiserver.start()
        self.apiserver.wait(self._apiserver_ready, timeout=START_TIMEOUT)

    def stop(self) -> None:
        """End every component, newest first, and remove the folder. Safe to call twice."""
        self._undo.close()

    def check(self) -> None:
        """Raise if a component has ended by itself."""
        for component in self.components:
            if not component.running:
                raise RealKubeError(f"{component.name} has ended:\n{tail(component.log)}")

    def request(
        self, method: str, path: str, body: object | None = None, *, timeout: float = 30.0
    ) -> tuple[int, bytes]:
        """One request as the administrator; status and body of the answer."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._server_port.number, context=self._context, timeout=timeout
        )
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def kubectl(
        self,
        *arguments: str,
        stdin: str | None = None,
        kubeconfig: Path | None = None,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run the kubectl of this version; with `check` a failure is an error with its message."""
        done = subprocess.run(
            [self.binaries.path("kubectl"), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.folder,
            env={
                "PATH": os.defpath,
                "HOME": str(self.folder),
                "KUBECONFIG": str(kubeconfig or self.kubeconfig),
                **(env or {}),
            },
        )
        if check and done.returncode != 0:
            raise RealKubeError(
                f"kubectl {' '.join(arguments)} failed with {done.returncode}: "
                f"{done.stderr.strip()[:2000]}"
            )
        return done

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig that authenticates by a new client certificate."""
        certificate, key = self._authority.user(user, groups)
        credentials = {"client-certificate-data": inline(certificate)}
        return self._kubeconfig(user, credentials | {"client-key-data": inline(key)})

    def kubeconfig_with_token(self, user: str, token: str) -> Path:
        """A kubeconfig that authenticates by a bearer token."""
        return self._kubeconfig(user, {"token": token})

    def audited(self) -> list[dict[str, Any]]:
        """The audit events written so far, in the order the server wrote them."""
        if not self.audit_log.exists():
            return []
        with self.audit_log.open() as lines:
            # The last line may be half written while the server runs.
            return [json.loads(line) for line in lines if line.endswith("\n")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _port(self) -> Port:
        port = Port()
        self._undo.callback(port.close)
        return port

    def _component(self, name: str, arguments: Iterable[str]) -> Component:
        program = self.binaries.path(name)
        component = Component(name, program, arguments, guard=self._guard, folder=self.folder)
        self._undo.callback(component.stop)
        return component

    def _write_credentials(self) -> None:
        pairs = {
            "server": self._authority.server(SERVER_NAMES, SERVER_ADDRESSES),
            "admin": self._authority.user(ADMIN, ["system:masters"]),
        }
        for name, (certificate, key) in pairs.items():
            (self._pki / f"{name}.crt").write_bytes(certificate)
            write_private(self._pki / f"{name}.key", key)
        service_accounts = private_key()
        write_private(self._pki / "sa.key", private_pem(service_accounts))
        (self._pki / "sa.pub").write_bytes(public_pem(service_accounts))
        certificate, key = pairs["admin"]
        credentials = {"client-certificate-data": inline(certificate)}
        self._kubeconfig(
            ADMIN, credentials | {"client-key-data": inline(key)}, path=self.kubeconfig
        )
        if self.settings.tokens:
            file = self._pki / "tokens.csv"
            write_private(file, b"")
            with file.open("w", newline="") as rows:
                for credential in self.settings.tokens:
                    csv.writer(rows).writerow(
                        [
                            credential.token,
                            credential.user,
                            f"uid-{credential.user}",
                            ",".join(credential.groups),
                        ]
                    )
        if self.settings.audit:
            policy = {
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "rules": list(self.settings.audit),
            }
            (self.folder / "audit-policy.json").write_text(json.dumps(policy))

    def _kubeconfig(
        self, user: str, credentials: Mapping[str, str], *, path: Path | None = None
    ) -> Path:
        """Write a self-contained kubeconfig; JSON is YAML, and kubectl reads it as such."""
        target = path or self.folder / f"{user.replace('/', '_')}.kubeconfig"
        authority = {"certificate-authority-data": inline(self._authority.pem)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "realkube", "cluster": {"server": self.url} | authority}],
            "users": [{"name": user, "user": dict(credentials)}],
            "contexts": [{"name": "realkube", "context": {"cluster": "realkube", "user": user}}],
            "current-context": "realkube",
        }
        write_private(target, json.dumps(config, indent=1).encode())
        return target

    def _etcd_arguments(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._port()))
        arguments = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--log-level=warn",
        ]
        if not self.settings.fsync:
            arguments.append("--unsafe-no-fsync")
        return merged(arguments, self.settings.etcd_args)

    def _apiserver_arguments(self) -> list[str]:
        settings = self.settings
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._server_port}",
            f"--advertise-address={ADVERTISED}",
            f"--cert-dir={self._pki}",
            f"--tls-cert-file={self._pki / 'server.crt'}",
            f"--tls-private-key-file={self._pki / 'server.key'}",
            f"--client-ca-file={self.certificate_authority}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._pki / 'sa.pub'}",
            f"--service-account-signing-key-file={self._pki / 'sa.key'}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
        ]
        if not settings.service_accounts:
            arguments.append("--disable-admission-plugins=ServiceAccount")
        if settings.tokens:
            arguments.append(f"--token-auth-file={self._pki / 'tokens.csv'}")
        if settings.audit:
            arguments.append(f"--audit-policy-file={self.folder / 'audit-policy.json'}")
            arguments.append(f"--audit-log-path={self.audit_log}")
        return merged(arguments, settings.apiserver_args)

    def _client_arguments(self, name: str) -> list[str]:
        """What kube-controller-manager and kube-scheduler have in common."""
        self._health[name] = self._port()
        return [
            f"--kubeconfig={self.kubeconfig_for(f'system:{name}')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._health[name]}",
            f"--tls-cert-file={self._pki / 'server.crt'}",
            f"--tls-private-key-file={self._pki / 'server.key'}",
            OPEN_PATHS,
            *FAST_CLIENT,
        ]

    def _controller_manager_arguments(self) -> list[str]:
        arguments = [
            *self._client_arguments("kube-controller-manager"),
            f"--controllers={','.join(self.settings.controllers)}",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self._pki / 'sa.key'}",
            f"--root-ca-file={self.certificate_authority}",
            f"--cluster-signing-cert-file={self.certificate_authority}",
            f"--cluster-signing-key-file={self._authority.key_file}",
        ]
        return merged(arguments, self.settings.controller_manager_args)

    def _scheduler_arguments(self) -> list[str]:
        return merged(self._client_arguments("kube-scheduler"), self.settings.scheduler_args)

    def _etcd_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._etcd_port.number, timeout=5)
        return answers(connection, "/health")

    def _apiserver_ready(self) -> bool:
        try:
            return self.request("GET", "/readyz", timeout=5)[0] == http.HTTPStatus.OK
        except OSError:
            return False

    def _healthy(self, port: Port) -> bool:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port.number, context=self._context, timeout=5
        )
        return answers(connection, "/healthz")

    def _service_account_exists(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        return self.request("GET", path)[0] == http.HTTPStatus.OK


def answers(connection: http.client.HTTPConnection, path: str) -> bool:
    """Whether a server answers a GET with 200; the connection is closed."""
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def merged(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Our arguments less those that are given anew, then the given ones.

    Repeating is not enough: list-valued flags add up, and modes named twice are refused.
    """
    given = {argument.partition("=")[0] for argument in theirs}
    if "--authorization-config" in given:
        given.add("--authorization-mode")
    return [*(flag for flag in ours if flag.partition("=")[0] not in given), *theirs]


def inline(pem: bytes) -> str:
    """PEM the way a kubeconfig carries it."""
    return base64.b64encode(pem).decode()


def prepare(folder: Path | None) -> Path:
    """An empty folder only we can read."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="zonewise-realkube-"))
    folder = folder.absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        used = any(folder.iterdir())
    except OSError as error:
        raise RealKubeError(f"The folder {folder} cannot be used: {error.strerror}.") from error
    if used:
        raise RealKubeError(
            f"The folder {folder} is not empty; name one that is or does not exist."
        )
    return folder
