"""Errors of files, servers and plugins are one sentence and exit code 2, in time.

Every case runs ``zonewise version``, the smallest command that needs a cluster. The bulk runs in
this process; one of each kind runs in a process of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.cli.run_program import Result, apart, here
from tests.runtime.loopback import (
    Reply,
    Seen,
    closed_port,
    pem,
    server_tls,
    silent,
    tcp,
    web,
    write_kubeconfig,
)

CA = trustme.CA()
BUNDLE = {"certificate-authority-data": base64.b64encode(pem(CA)).decode()}
V1 = "client.authentication.k8s.io/v1"

Run = Callable[..., Result]


def ask(path: Path | None, *more: str, timeout: str = "20s") -> tuple[str, ...]:
    where = () if path is None else ("--kubeconfig", str(path))
    return ("version", f"--request-timeout={timeout}", *where, *more)


def refused(result: Result, says: str) -> None:
    sentence = result.sentence()
    assert says in sentence
    assert result.code == 2
    assert result.out.startswith("Client Version: ")
    assert "Server Version" not in result.out


# Files


def text(content: str | bytes) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def parts(**changes: Any) -> Callable[[Path], Path]:
    return lambda path: write_kubeconfig(path, **changes)


def folder(path: Path) -> Path:
    path.mkdir()
    return path


def nothing(path: Path) -> Path:
    return path


def whole(**fields: Any) -> Callable[[Path], Path]:
    content = {
        "current-context": "dev",
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
        **fields,
    }
    return text(json.dumps(content))


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing file": (nothing, "there is no kubeconfig"),
    "a directory": (folder, "is a directory; give a kubeconfig file"),
    "an empty file": (text(""), "sets no current-context; add one"),
    "only a comment": (text("# nothing\n"), "sets no current-context"),
    "not YAML": (text("contexts: [\n"), "is not YAML in line 2"),
    "tabs": (text("contexts:\n\t- a\n"), "is not YAML in line 2"),
    "binary": (text(bytes(range(256))), "is not YAML"),
    "brackets without end": (text("[" * 100_000), "is not YAML"),
    "a text": (text("hello"), "is not a kubeconfig but a text"),
    "a list": (text("- a"), "is not a kubeconfig but a list"),
    "another kind": (text("kind: Secret"), "holds a Secret, not a kubeconfig"),
    "contexts are no list": (whole(contexts={"dev": {}}), "contexts must be a list"),
    "a user is a text": (whole(users=["u"]), "users must be a list of mappings"),
    "a cluster is a list": (
        whole(clusters=[{"name": "c", "cluster": []}]),
        "clusters[0]: cluster must be a mapping, not a list",
    ),
    "a name is a list": (whole(users=[{"name": []}]), "users[0]: name must be text"),
    "no name": (whole(users=[{"user": {}}]), "users[0]: name is missing"),
    "twice the same name": (
        whole(clusters=[{"name": "c"}, {"name": "c"}]),
        'clusters names "c" twice',
    ),
    "no current context": (whole(**{"current-context": ""}), "choose one with --context: dev"),
    "unknown current context": (
        whole(**{"current-context": "prod"}),
        'there is no context "prod" in',
    ),
    "missing cluster": (parts(context={"cluster": "x"}), 'no cluster "x" in'),
    "missing user": (parts(context={"user": "x"}), 'no user "x" in'),
    "no cluster named": (parts(context={"cluster": ""}), 'context "dev": cluster is missing'),
    "no server": (parts(cluster={"server": None}), 'cluster "c": server is missing'),
    "server is a list": (parts(cluster={"server": ["x"]}), "server must be text, not a list"),
    "server is no address": (parts(server="https://a b:x"), "server is not an address"),
    "bad base64 authority": (
        parts(cluster={"certificate-authority-data": "not base64!"}),
        'cluster "c": certificate-authority-data is not base64',
    ),
    "authority is no certificate": (
        parts(cluster={"certificate-authority-data": "aGVsbG8="}),
        "is not PEM text with certificates",
    ),
    "missing authority file": (
        parts(cluster={"certificate-authority": "gone.crt"}),
        "cannot read the certificate authority",
    ),
    "authority and no verification": (
        parts(cluster={**BUNDLE, "insecure-skip-tls-verify": True}),
        "cannot be combined with a certificate authority",
    ),
    "verification is a word": (
        parts(cluster={"insecure-skip-tls-verify": "perhaps"}),
        "must be true or false",
    ),
    "a proxy of another kind": (
        parts(cluster={"proxy-url": "socks5://127.0.0.1:1"}),
        "must be an http:// or https:// address",
    ),
    "missing certificate file": (
        parts(user={"client-certificate": "gone", "client-key": "gone"}),
        "cannot read the client certificate",
    ),
    "certificate without key": (
        parts(user={"client-certificate-data": "YQ=="}),
        'user "u": client-key is missing',
    ),
    "bad base64 key": (
        parts(user={"client-certificate-data": "YQ==", "client-key-data": "?"}),
        'user "u": client-key-data is not base64',
    ),
    "certificate is none": (
        parts(user={"client-certificate-data": "YQ==", "client-key-data": "YQ=="}),
        "and its key do not work together",
    ),
    "missing token file": (parts(user={"tokenFile": "gone"}), "cannot read the token file"),
    "token is a mapping": (parts(user={"token": {"a": 1}}), "token must be text, not a mapping"),
    "token with a line break": (parts(user={"token": "a\nb"}), "no HTTP header can carry"),
    "token and password": (
        parts(user={"token": "a", "username": "b"}),
        "token and username are both there",
    ),
    "an old plugin": (
        parts(user={"exec": {"apiVersion": f"{V1}alpha1", "command": "x"}}),
        "exec: apiVersion must be",
    ),
    "a plugin without command": (
        parts(user={"exec": {"apiVersion": V1, "interactiveMode": "Never"}}),
        "exec: command is missing",
    ),
    "a provider of the past": (
        parts(user={"auth-provider": {"name": "azure"}}),
        "use its exec plugin instead",
    ),
    "OIDC without an issuer": (
        parts(user={"auth-provider": {"name": "oidc", "config": {"client-id": "c"}}}),
        "idp-issuer-url is missing",
    ),
    "OIDC expired for good": (
        parts(
            user={
                "auth-provider": {
                    "name": "oidc",
                    "config": {"idp-issuer-url": "https://127.0.0.1:1", "client-id": "c"},
                }
            }
        ),
        "has expired and there is no refresh token; log in again",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_broken_kubeconfigs(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """Every error in a kubeconfig is one sentence that says what is wrong and what to do."""
    make, says = FILES[case]
    refused(here(capsys, *ask(make(tmp_path / "config"))), says)


@pytest.mark.system
@pytest.mark.parametrize(
    "case", ["missing file", "a directory", "not YAML", "binary", "brackets without end"]
)
def test_broken_kubeconfigs_in_a_process(tmp_path: Path, case: str) -> None:
    """In a process of its own, too, an error in a kubeconfig is one sentence, and nothing else is
    on stderr.
    """
    make, says = FILES[case]
    refused(apart(tmp_path, *ask(make(tmp_path / "config"))), says)


@pytest.mark.system
def test_an_unreadable_kubeconfig(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without read permission has another sentence than a missing one."""
    path = write_kubeconfig(tmp_path / "config")
    path.chmod(0)
    here(capsys, *ask(path))
    with unprivileged():
        result = here(capsys, *ask(path))
    refused(result, "permission denied; make it readable")


@pytest.mark.system
def test_no_configuration_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a kubeconfig and outside a pod the sentence says how to give one."""
    refused(here(capsys, *ask(None)), "give one with --kubeconfig or the KUBECONFIG variable")
    refused(apart(tmp_path, *ask(None)), "no cluster is configured")


@pytest.mark.system
def test_unknown_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that names an unknown entry gets a sentence with the known ones."""
    path = write_kubeconfig(tmp_path / "config")
    says = "choose one of: "
    refused(here(capsys, *ask(path, "--context", "prod")), says + "dev")
    refused(here(capsys, *ask(path, "--cluster", "prod")), says + "c")
    refused(here(capsys, *ask(path, "--user", "prod")), says + "u")
    refused(apart(tmp_path, *ask(path, "--context", "prod")), 'there is no context "prod"')


def test_strange_names_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters in a name are escaped, on one line."""
    path = write_kubeconfig(tmp_path / "config")
    result = here(capsys, *ask(path, "--context", "a\x1b[31m\nb"))
    refused(result, 'there is no context "a\\x1b[31m b"')


# Servers


def status(code: int, reason: str) -> Reply:
    body = {"kind": "Status", "status": "Failure", "message": reason, "code": code}
    return Reply(code, json.dumps(body).encode())


def always(reply: Reply) -> Callable[[Seen], Reply]:
    return lambda _: reply


@contextlib.contextmanager
def speaking(reply: Reply, *, authority: trustme.CA = CA) -> Iterator[str]:
    with web(always(reply), tls=server_tls(authority)) as running:
        yield running.url


@contextlib.contextmanager
def talking(talk: Callable[[socket.socket], None], scheme: str = "https") -> Iterator[str]:
    with tcp(talk) as port:
        yield f"{scheme}://127.0.0.1:{port}"


@contextlib.contextmanager
def at(address: str) -> Iterator[str]:
    yield address


def hangs_up(connection: socket.socket) -> None:
    connection.recv(1 << 16)


def half_of_tls(connection: socket.socket) -> None:
    """Begins a TLS handshake and stops sending."""
    connection.recv(1 << 16)
    connection.sendall(b"\x16\x03\x03\x00\x7a\x02\x00\x00")
    silent(connection)


def half_an_answer(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def plain_http(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


HTML = {"Content-Type": "text/html"}
PLAIN = {"Content-Type": "text/plain"}
LOGIN = {"Location": "https://login.example/?next=/version"}

SERVERS: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[str]], str]] = {
    "expired token": (
        lambda: speaking(status(401, "Unauthorized")),
        "does not accept our credentials; they may have expired: log in again",
    ),
    "wrong authority": (
        lambda: speaking(Reply(), authority=trustme.CA()),
        "is not signed by the certificate authority we trust",
    ),
    "unreachable": (lambda: at(f"https://127.0.0.1:{closed_port()}"), "connection refused"),
    "unknown host": (lambda: at("https://kube.invalid:6443"), "cannot find the host kube.invalid"),
    "hangs up": (lambda: talking(hangs_up), "hung up during the TLS handshake"),
    "half an answer": (lambda: talking(half_an_answer, "http"), "ended the connection before"),
    "no TLS": (lambda: talking(plain_http), "does not speak TLS"),
    "a web server": (
        lambda: speaking(Reply(200, b"<html>", HTML)),
        "is not a Kubernetes API server: it answered 200 with a web page",
    ),
    "a web server without this page": (
        lambda: speaking(Reply(404, b"404 page not found", PLAIN)),
        "does not answer as a Kubernetes API server: it has no /version",
    ),
    "a login page": (
        lambda: speaking(Reply(302, b"", LOGIN)),
        "it redirects to https://login.example; check the server address",
    ),
    "a gateway": (lambda: speaking(Reply(503, b"<html>", HTML)), "a gateway in front of"),
    "garbage": (lambda: speaking(Reply(200, b"\xff{garbage")), "is not JSON"),
    "an empty answer": (lambda: speaking(Reply(200, b"")), "is not JSON"),
    "another program's JSON": (lambda: speaking(Reply(200, b"{}")), "names no version"),
    "a list": (lambda: speaking(Reply(200, b"[1]")), "names no version"),
    "a server in trouble": (
        lambda: speaking(status(500, "etcd is away; wait")),
        "etcd is away; wait",
    ),
}
SILENT: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    "silent": lambda: talking(silent),
    "silent without TLS": lambda: talking(silent, "http"),
    "half of TLS": lambda: talking(half_of_tls),
}


def kubeconfig_for(path: Path, server: str) -> Path:
    return write_kubeconfig(path, server=server, cluster=BUNDLE, user={"token": "hush"})


@pytest.mark.parametrize("case", SERVERS)
def test_bad_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """Every error of a server is one sentence that names it; the token is never printed."""
    make, says = SERVERS[case]
    with make() as server:
        result = here(capsys, *ask(kubeconfig_for(tmp_path / "config", server)))
    refused(result, says)
    assert server in result.err or "etcd" in says
    assert "hush" not in result.err


@pytest.mark.parametrize("case", SILENT)
def test_servers_that_never_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """A request to a silent server ends with the request timeout."""
    with SILENT[case]() as server:
        path = kubeconfig_for(tmp_path / "config", server)
        result = here(capsys, *ask(path, timeout="300ms"))
    refused(result, "did not answer within 0.3 s")


@pytest.mark.system
@pytest.mark.parametrize("case", ["expired token", "wrong authority", "unreachable", "garbage"])
def test_bad_servers_in_a_process(tmp_path: Path, case: str) -> None:
    """In a process of its own, too, an error of a server is one sentence, and nothing else is on
    stderr.
    """
    make, says = SERVERS[case]
    with make() as server:
        result = apart(tmp_path, *ask(kubeconfig_for(tmp_path / "config", server)))
    refused(result, says)


@pytest.mark.system
def test_a_silent_server_in_a_process(tmp_path: Path) -> None:
    """A silent server does not block the program."""
    with talking(silent) as server:
        path = kubeconfig_for(tmp_path / "config", server)
        refused(apart(tmp_path, *ask(path, timeout="500ms")), "did not answer within 0.5 s")


@pytest.mark.system
def test_a_web_server_in_a_process(tmp_path: Path) -> None:
    """A web server over plain HTTP is recognised."""
    with web(always(Reply(200, b"<html>", HTML))) as running:
        path = write_kubeconfig(tmp_path / "config", server=running.url)
        refused(apart(tmp_path, *ask(path)), "is not a Kubernetes API server")


def test_a_refusal_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal of the server is exit code 1, with the server's message."""
    with speaking(status(403, "jane may not; ask an admin")) as server:
        result = here(capsys, *ask(kubeconfig_for(tmp_path / "config", server)))
    assert result.code == 1
    assert result.sentence() == "error: jane may not; ask an admin"


# Exec plugins


def printed(**status: Any) -> str:
    answer = {"kind": "ExecCredential", "apiVersion": V1, "status": status}
    return f"echo '{json.dumps(answer)}'"


PLUGINS: dict[str, tuple[str | None, str]] = {
    "missing": (None, "is not installed or not executable; install it: ask your admin"),
    "fails": ("echo 'please log in' >&2; exit 1", "failed with exit code 1 (please log in)"),
    "fails loudly": ("seq 1000 >&2; exit 1", "failed with exit code 1 (1000)"),
    "prints garbage": ("echo garbage", "printed something that is not an ExecCredential"),
    "prints nothing": ("", "printed something that is not an ExecCredential"),
    "prints another version": (
        printed(token="hush").replace("/v1", "/v1beta1"),
        "did not print an ExecCredential of",
    ),
    "prints no credential": (printed(), "printed neither a token nor a client certificate"),
    "prints a broken certificate": (
        printed(clientCertificateData="no", clientKeyData="no"),
        "and its key do not work together",
    ),
    "cannot be executed": ("\x7fELF", "cannot be run: exec format error"),
    "hangs": ("exec sleep 600", "did not finish within 1 s and was stopped"),
}


def plugin_config(tmp_path: Path, script: str | None) -> Path:
    command = tmp_path / "plugin"
    if script is not None:
        command.write_text(script if script.startswith("\x7f") else f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
    plugin = {
        "apiVersion": V1,
        "command": str(command),
        "interactiveMode": "Never",
        "installHint": "ask your admin",
    }
    return write_kubeconfig(
        tmp_path / "config", server=f"https://127.0.0.1:{closed_port()}", user={"exec": plugin}
    )


@pytest.mark.system
@pytest.mark.parametrize("case", PLUGINS)
def test_bad_plugins(tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str) -> None:
    """Every error of a plugin is one sentence with its name and its last line."""
    script, says = PLUGINS[case]
    timeout = "1s" if case == "hangs" else "20s"
    result = here(capsys, *ask(plugin_config(tmp_path, script), timeout=timeout))
    refused(result, says)
    assert "hush" not in result.err


@pytest.mark.system
@pytest.mark.parametrize("case", ["missing", "fails", "prints garbage", "hangs"])
def test_bad_plugins_in_a_process(tmp_path: Path, case: str) -> None:
    """In a process of its own, too, an error of a plugin is one sentence, without the plugin's
    other output.
    """
    script, says = PLUGINS[case]
    timeout = "1s" if case == "hangs" else "20s"
    refused(apart(tmp_path, *ask(plugin_config(tmp_path, script), timeout=timeout)), says)


# Usage


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("vresion",), 'unknown command "vresion"; did you mean "zonewise version"?'),
        (("frobnicate",), 'unknown command "frobnicate"; see "zonewise --help"'),
        (("version", "--contxt", "a"), "unknown flag --contxt for"),
        (("--contxt=a", "version"), "did you mean --context?"),
        (("version", "-A"), "unknown flag -A for"),
        (("-f", "dump.yaml", "version"), "unknown flag -f for"),
        (("version", "--context"), "option '--context' requires an argument"),
        (("version", "-o", "table"), "is not one of 'json', 'yaml'"),
        (("version", "--request-timeout", "soon"), '"soon" is not a time; write it like 10s'),
        (("version", "--request-timeout=-1s"), '"-1s" is not a time'),
        (("version", "now"), "unexpected extra argument (now)"),
        (("--log-format", "xml", "version"), "is not one of 'text', 'json'"),
        (("completion",), "missing argument 'SHELL'"),
        (("completion", "tcsh"), "'tcsh' is not one of 'bash'"),
        (("version", "--as-group", "a"), "--as-group and --as-uid need --as"),
    ],
)
def test_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    """Wrong usage is one sentence, with a suggestion if there is one, and exit code 2."""
    result = here(capsys, *arguments)
    assert says in result.sentence()
    assert result.code == 2


@pytest.mark.system
def test_wrong_usage_in_a_process(tmp_path: Path) -> None:
    """In a process of its own, too, wrong usage is a sentence with a suggestion and exit code 2."""
    result = apart(tmp_path, "versoin")
    assert (result.code, result.out) == (2, "")
    assert 'did you mean "python -m zonewise version"?' in result.sentence()


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Run as another user than root, which may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
