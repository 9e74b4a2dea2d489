"""Client and server versions."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from tests.cli.run_program import apart, here
from tests.runtime.loopback import VERSION, closed_port, web, write_kubeconfig

CLIENT = f"Client Version: {version('zonewise')}\n"


def test_client_and_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both versions are printed as kubectl prints them."""
    with web() as server:
        path = write_kubeconfig(tmp_path / "config", server=server.url)
        result = here(capsys, "version", "--kubeconfig", path)
    assert (result.code, result.err) == (0, "")
    assert result.out == CLIENT + "Server Version: v1.36.4\n"
    assert [seen.path for seen in server.seen] == ["/version"]


def test_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON and YAML have all fields of the server's version."""
    with web() as server:
        path = write_kubeconfig(tmp_path / "config", server=server.url)
        as_json = here(capsys, "version", "--kubeconfig", path, "-o", "json").out
        as_yaml = here(capsys, "version", "--kubeconfig", path, "-o", "yaml").out
    assert json.loads(as_json) == yaml.safe_load(as_yaml)
    assert json.loads(as_json)["serverVersion"] == VERSION
    assert json.loads(as_json)["clientVersion"]["version"] == version("zonewise")


def test_client_only(capsys: pytest.CaptureFixture[str]) -> None:
    """--client needs no cluster and no configuration."""
    result = here(capsys, "version", "--client")
    assert (result.code, result.out, result.err) == (0, CLIENT, "")


def test_the_client_version_without_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client's version is printed, in all formats, and the exit code is 2."""
    address = f"https://127.0.0.1:{closed_port()}"
    path = write_kubeconfig(tmp_path / "config", server=address)
    result = here(capsys, "version", "--kubeconfig", path, "-o", "json")
    assert result.code == 2
    assert list(json.loads(result.out)) == ["clientVersion"]
    assert "connection refused" in result.sentence()


def test_flags_choose_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--context chooses the server, and --as is sent to it."""
    with web() as server:
        path = tmp_path / "config"
        path.write_text(
            "contexts: [{name: other, context: {cluster: c}}]\n"
            f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
        )
        arguments = ("--context=other", "version", "--kubeconfig", path)
        assert here(capsys, *arguments, "--as", "jane", "--as-group", "a").code == 0
    assert server.seen[0].header("Impersonate-User") == "jane"
    assert server.seen[0].all("Impersonate-Group") == ["a"]


@pytest.mark.system
def test_verbose_logs_to_stderr(tmp_path: Path) -> None:
    """The log of -v is on stderr, in the format of --log-format."""
    with web() as server:
        path = write_kubeconfig(tmp_path / "config", server=server.url)
        result = apart(
            tmp_path, "version", "--kubeconfig", path, "-vv", "--log-format", "json", "-o", "json"
        )
    assert result.code == 0
    assert json.loads(result.out)["serverVersion"] == VERSION
    for line in result.err.splitlines():
        json.loads(line)
