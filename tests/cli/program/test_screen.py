"""Control characters from servers, files and flags never reach a terminal, in any command."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast, get_args

import click
import pytest
import yaml
from tests.cli.run_program import Result, environment, here
from tests.runtime.loopback import Reply, Seen, web, write_kubeconfig

from zonewise.api.values.printable import escape_unprintable, escape_unprintable_json
from zonewise.cli.main import ENTRIES
from zonewise.cli.program.screen import Screen, make_console, render
from zonewise.runtime.process import logs

# A terminal title, a colour as C1 control, bidirectional overrides, a bell, a delete, breaks of
# lines, and rich's markup.
EVIL = "x\x1b]0;title\x07\x1b[31m\x9b31m\u202ex\u2066\x7f\x85\u2028[red]y[/blue]\r"
UNCUT = EVIL.replace("/", "|")  # budgets and pods are named KIND/NAME
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
ZONE = "topology.kubernetes.io/zone"


def _named(item: dict[str, Any]) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "name": UNCUT}}


def objects() -> dict[str, list[dict[str, Any]]]:
    """The objects of a malicious cluster, by their plural."""
    meta = {"name": EVIL, "namespace": EVIL, "uid": "u"}
    ready = [{"type": "Ready", "status": "True"}]
    node = {
        "metadata": {"name": EVIL, "labels": {ZONE: EVIL, "kubernetes.io/hostname": EVIL}},
        "status": {"conditions": ready, "allocatable": {"cpu": "4"}},
    }
    mode = {"service.kubernetes.io/topology-mode": EVIL, "zonewise.io/overload": EVIL}
    service = {
        "metadata": {**meta, "annotations": mode},
        "spec": {"selector": {"app": EVIL}, "ports": [{"name": EVIL, "port": 80}]},
    }
    piece = {
        "metadata": {**meta, "labels": {"kubernetes.io/service-name": EVIL}},
        "addressType": "IPv4",
        "ports": [{"name": EVIL, "port": 80}],
        "endpoints": [
            {
                "addresses": ["10.0.0.1"],
                "nodeName": EVIL,
                "zone": EVIL,
                "conditions": {"ready": True},
                "targetRef": {"kind": "Pod", "name": EVIL, "namespace": EVIL},
            }
        ],
    }
    pod = {
        "metadata": {**meta, "labels": {"app": EVIL}},
        "spec": {"nodeName": EVIL, "containers": [{"name": EVIL, "image": EVIL}]},
        "status": {"phase": EVIL, "conditions": ready, "podIP": "10.0.0.1"},
    }
    selects = {"matchLabels": {"app": EVIL}}
    conditions = [{"type": EVIL, "status": "False", "reason": EVIL, "message": EVIL}]
    budget = {
        "metadata": meta,
        "spec": {"selector": selects, "maxUnavailable": 1, "topologyKeys": [ZONE]},
        "status": {"conditions": conditions},
    }
    plain = {"metadata": meta, "spec": {"selector": selects, "minAvailable": EVIL}}
    claim = {
        "metadata": {**meta, "annotations": {"volume.kubernetes.io/selected-node": EVIL}},
        "spec": {"storageClassName": EVIL, "volumeName": EVIL, "accessModes": [EVIL]},
        "status": {"phase": EVIL},
    }
    term = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": [EVIL]}]}
    volume = {
        "metadata": {"name": EVIL, "uid": "u"},
        "spec": {
            "csi": {"driver": EVIL, "volumeHandle": EVIL, "volumeAttributes": {"pool": EVIL}},
            "claimRef": {"namespace": EVIL, "name": EVIL, "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            "storageClassName": EVIL,
        },
        "status": {"phase": EVIL, "reason": EVIL, "message": EVIL},
    }
    storage_class = {"metadata": {"name": EVIL}, "provisioner": EVIL, "parameters": {EVIL: EVIL}}
    note = {
        "metadata": meta,
        "regarding": {"kind": "PersistentVolumeClaim", "namespace": EVIL, "name": EVIL},
        "reason": EVIL,
        "note": EVIL,
        "type": "Warning",
    }
    pools = {"metadata": {"name": "csi", "namespace": "zonewise-system"}}
    return {
        "nodes": [node],
        "services": [service],
        "endpointslices": [piece],
        "pods": [pod, _named(pod)],
        "topologydisruptionbudgets": [budget, _named(budget)],
        "poddisruptionbudgets": [plain, _named(plain)],
        "persistentvolumeclaims": [claim],
        "persistentvolumes": [volume],
        "storageclasses": [storage_class],
        "events": [note],
        "configmaps": [{**pools, "data": {"config.json": EVIL}}],
    }


KINDS = {
    "nodes": ("v1", "Node"),
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "pods": ("v1", "Pod"),
    "topologydisruptionbudgets": ("zonewise.io/v1alpha1", "TopologyDisruptionBudget"),
    "poddisruptionbudgets": ("policy/v1", "PodDisruptionBudget"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "storageclasses": ("storage.k8s.io/v1", "StorageClass"),
    "events": ("events.k8s.io/v1", "Event"),
    "configmaps": ("v1", "ConfigMap"),
}


def api(seen: Seen) -> Reply:
    """A malicious server that claims to be an embedded cluster."""
    path = seen.path.partition("?")[0]
    if path == "/version":
        version = {"major": EVIL, "minor": EVIL, "gitVersion": f"v1.36.0+zonewise{EVIL}"}
        return _json(200, version)
    *_, before, plural = path.split("/")
    if seen.method == "GET" and before == "configmaps":
        meta = {"name": plural, "namespace": "zonewise-system", "resourceVersion": "1"}
        data = {"config.json": f'{{"pools": [{{{json.dumps(EVIL)}: 1}}]}}', "status.json": EVIL}
        return _json(200, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data})
    if seen.method == "GET" and plural in KINDS:
        version_, kind = KINDS[plural]
        head = {"apiVersion": version_, "kind": f"{kind}List", "metadata": {"resourceVersion": "1"}}
        return _json(200, {**head, "items": objects()[plural]})
    if seen.method == "PATCH":
        return _json(200, {"apiVersion": "v1", "kind": "Node", **objects()["nodes"][0]})
    return refusing(seen)


def refusing(_: Seen) -> Reply:
    """A malicious server that refuses everything."""
    status = {"kind": "Status", "status": "Failure", "reason": "Forbidden", "message": EVIL}
    return _json(403, {**status, "code": 403})


def _json(code: int, body: object) -> Reply:
    return Reply(code, json.dumps(body, ensure_ascii=False).encode())


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """The same objects in a file, and one of an unknown kind."""
    items = [
        {"apiVersion": version, "kind": kind, **item}
        for plural, (version, kind) in KINDS.items()
        for item in objects()[plural]
    ]
    items.append({"apiVersion": f"example.com/{EVIL}", "kind": EVIL, "metadata": {"name": EVIL}})
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return path


@pytest.fixture(params=["a cluster", "a refusal"])
def kubeconfig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig of a malicious server."""
    with web(api if request.param == "a cluster" else refusing) as running:
        yield write_kubeconfig(tmp_path / "config", cluster={"server": running.url})


def require_harmless(text: str) -> None:
    """Assert that the text has no control characters."""
    assert text.replace("\n", "").replace("\t", "").isprintable(), repr(text)


Case = Callable[[Path, Path], tuple[str | Path, ...]]

# By command; each gets the kubeconfig of a malicious server, and a malicious dump.
CASES: dict[str, list[Case]] = {
    "up": [
        lambda _, dump: ("up", "--stages", dump),
        lambda _, dump: ("up", "--scenario", dump),
        lambda _, dump: ("up", "-f", f"{dump}{EVIL}"),
        lambda _, dump: ("up", "--listen", EVIL),
    ],
    "status": [
        lambda config, _: ("status", "--kubeconfig", config),
        lambda config, _: ("status", "-o", "json", "--kubeconfig", config),
        lambda config, _: ("status", "-o", "yaml", "--kubeconfig", config),
    ],
    "fail": [
        lambda config, _: ("fail", "zone", EVIL, "--kubeconfig", config),
        lambda config, _: ("fail", "zone", "other", "--kubeconfig", config),
        lambda config, _: ("fail", "node", EVIL, "--kubeconfig", config),
    ],
    "heal": [
        lambda config, _: ("heal", "zone", EVIL, "--kubeconfig", config),
        lambda config, _: ("heal", "node", "other", "--kubeconfig", config),
    ],
    "explain": [
        *(
            lambda config, dump, more=more: ("explain", "services", "-A", *more, "-f", dump)
            for more in ((), ("-o", "json"), ("-o", "yaml"), ("-o", "jsonl"))
        ),
        *(
            lambda config, dump, more=more: (
                *("explain", "service", EVIL, "-n", EVIL, *more),
                *("--kubeconfig", config),
            )
            for more in ((), ("-o", "json"), ("-o", "yaml"))
        ),
        lambda config, _: ("explain", "services", "-A", "--kubeconfig", config),
        lambda _, dump: ("explain", "service", EVIL, "-n", EVIL, "-f", dump),
        lambda _, dump: ("explain", "service", "other", "-f", dump),
        *(
            lambda _, dump, words=words, more=more: ("explain", *words, *more, "-f", dump)
            for words in (
                ("budgets", "-A"),
                ("budget", UNCUT, "-n", EVIL),
                ("budget", f"tdb/{UNCUT}", "-n", EVIL),
                ("budget", f"pdb/{UNCUT}", "-n", EVIL),
                ("pods", "-A"),
                ("pod", UNCUT, "-n", EVIL),
                ("pod", UNCUT, "-n", "other"),
                ("volume", EVIL),
                ("volume", f"other{EVIL}"),
                ("pvc", EVIL, "-n", EVIL),
                ("pvc", EVIL, "-n", "other"),
                ("name", f"{EVIL}.{EVIL}.svc"),
                ("name", "web.shop.svc", "--client", EVIL),
                ("name", "web.shop.svc", "--client", f"{EVIL}/{EVIL}"),
            )
            for more in ((), ("-o", "json"), ("-o", "yaml"))
        ),
        *(
            lambda config, _, words=words: ("explain", *words, "--kubeconfig", config)
            for words in (
                ("budgets", "-A"),
                ("pods", "-A"),
                ("volume", EVIL),
                ("pvc", EVIL, "-n", EVIL),
                ("name", f"{EVIL}.{EVIL}.svc", "--client", f"{EVIL}/{EVIL}"),
            )
        ),
    ],
    "install": [lambda config, _: ("install", "-n", EVIL)],
    "takeover": [
        *(
            lambda config, _, words=words, more=more: (
                *("takeover", *words, *more),
                *("--kubeconfig", config),
            )
            for words in (("status",), ("set", EVIL, "--by", EVIL), ("clear", EVIL))
            for more in ((), ("-o", "json"), ("-o", "yaml"))
        ),
        lambda config, _: ("takeover", "status", "--drivername", EVIL, "--kubeconfig", config),
    ],
    "controller": [lambda config, _: ("controller", "--context", EVIL, "--kubeconfig", config)],
    "csi": [
        lambda _, dump: ("csi", "--config", dump, "--node-id", EVIL, "--endpoint", EVIL),
        lambda _, dump: ("csi", "check", "--config", dump),
        lambda _, dump: ("csi", "check", "--config", f"{dump}{EVIL}", "--data", EVIL),
    ],
    "dns": [lambda config, _: ("dns", "--context", EVIL, "--kubeconfig", config)],
    "proxy": [
        lambda _, dump: ("proxy", "--dry-run", "-f", dump),
        lambda _, dump: ("proxy", "--dry-run", "-o", "json", "-f", dump),
        lambda _, dump: ("proxy", "--dry-run", "--node-name", EVIL, "-f", dump),
    ],
    "webhook": [lambda config, _: ("webhook", "--context", EVIL, "--kubeconfig", config)],
    "version": [
        lambda config, _: ("version", "--kubeconfig", config),
        lambda config, _: ("version", "-o", "json", "--kubeconfig", config),
        lambda config, _: ("version", "-o", "yaml", "--kubeconfig", config),
    ],
    "completion": [lambda config, _: ("completion", EVIL)],
    "__complete": [lambda config, _: ("__complete", EVIL)],
}


def test_every_command_is_tested() -> None:
    """A new command has to be tested here, too."""
    assert CASES.keys() == ENTRIES.keys()


@pytest.mark.parametrize("name", CASES)
def test_no_command_prints_control_characters(
    name: str, kubeconfig: Path, dump: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Text from a server, a file or a flag is printed without control characters."""
    for case in CASES[name]:
        result = here(capsys, *case(kubeconfig, dump))
        require_harmless(result.out)
        require_harmless(result.err)
        assert "fault in zonewise" not in result.err, case(kubeconfig, dump)


@pytest.mark.parametrize("name", ["status", "explain"])
def test_colours_are_ours_alone(
    name: str, kubeconfig: Path, dump: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """On a terminal with colours only our own colour sequences are printed."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for case in CASES[name]:
        result = here(capsys, *case(kubeconfig, dump))
        require_harmless(COLOURS.sub("", result.out))
        require_harmless(result.err)


def test_a_name_is_the_same_in_sentences_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, too, control characters in a name are escaped, not removed."""
    name = "a\x1b[31m"
    meta = {"name": name, "namespace": "n"}
    kinds = {"Pod": "v1", "Node": "v1", "PodDisruptionBudget": "policy/v1"}
    items = [
        {"apiVersion": version, "kind": kind, "metadata": meta} for kind, version in kinds.items()
    ]
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    sentence = here(capsys, "explain", "pod", name, "-n", "n", "-f", file)
    table = here(capsys, "explain", "pods", "-n", "n", "-f", file)
    assert sentence.out.startswith("Pod n/a\\x1b[31m ")
    assert "a\\x1b[31m" in table.out


@pytest.mark.system
def test_up_prints_a_dump_safely(tmp_path: Path, dump: Path) -> None:
    """``up -f`` escapes the kinds and reasons in its table of what it leaves out."""
    done = _up(tmp_path, "-f", dump)
    require_harmless(done.out)
    require_harmless(done.err)
    assert "DIFFERENT HERE" in done.out
    assert escape_unprintable(EVIL)[:12] in done.out


@pytest.mark.system
@pytest.mark.parametrize("command", ["controller", "webhook"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_messages_of_a_server_are_logged_safely(
    tmp_path: Path, kubeconfig: Path, command: str, form: str
) -> None:
    """The first log lines of long-running programs have no control characters."""
    words = [sys.executable, "-m", "zonewise", command, "--kubeconfig", str(kubeconfig)]
    places = ["--metrics-listen", "127.0.0.1:0", *(["--listen", ":0"] * (command == "webhook"))]
    leading = ["--lease-namespace", "default"] if command == "controller" else []
    process = subprocess.Popen(
        [*words, *places, *leading, "-vv", "--log-format", form],
        env=environment(tmp_path),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    try:
        for _, line in zip(range(4), process.stderr, strict=False):
            require_harmless(line)
    finally:
        process.kill()
        process.communicate()


def _up(home: Path, *arguments: str | Path) -> Result:
    """Run a cluster until its page is printed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zonewise", "up", *map(str, arguments)],
        env=environment(home),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        process.terminate()
        rest, errors = process.communicate()
        return Result(process.returncode, "".join(lines) + rest, errors)
    finally:
        process.kill()
        process.communicate()


def test_log_lines_are_harmless() -> None:
    """Control characters in the event, a field's name or value, or an error are escaped."""
    for form in get_args(logs.Format):
        stream = io.StringIO()
        logs.configure(verbosity=1, format=form, stream=stream)
        try:
            log = logs.logger(EVIL)
            log.warning(EVIL, **{EVIL: EVIL, "deep": [{EVIL: EVIL}]})
            try:
                raise ValueError(EVIL)
            except ValueError:
                log.exception("it failed")
        finally:
            logs.configure()
        require_harmless(stream.getvalue())
        if form == "json":
            first = json.loads(stream.getvalue().splitlines()[0])
            assert first["event"] == EVIL


def test_values_survive_their_escapes() -> None:
    """JSON and YAML decode to exactly the values of the cluster."""
    value = {EVIL: [EVIL, "façade", "\U000e0001"]}
    for output in ("json", "jsonl"):
        text = render(value, output)
        require_harmless(text)
        assert json.loads(text) == value
    text = render(value, "yaml")
    require_harmless(text)
    assert yaml.safe_load(text) == value
    assert "façade" in render(["façade"], "yaml") and "façade" in render(["façade"], "json")
    assert json.loads(escape_unprintable_json(json.dumps(value, ensure_ascii=False))) == value


def test_the_screen_passes_only_text() -> None:
    """Line breaks are kept, and letters that the stream cannot encode are escaped."""
    raw = io.BytesIO()
    beneath = io.TextIOWrapper(raw, encoding="ascii")
    screen = Screen(beneath)
    click.echo(f"é {EVIL}\nnext", file=cast("TextIO", screen))
    beneath.flush()
    require_harmless(raw.getvalue().decode("ascii"))
    assert raw.getvalue().startswith(b"\\xe9 x\\x1b]0;title")
    assert raw.getvalue().endswith(b"\nnext\n")
    assert escape_unprintable("a\nb") == "a\\nb"
    click.echo(EVIL.encode(), file=cast("TextIO", screen))
    beneath.flush()
    require_harmless(raw.getvalue().decode("ascii"))


def test_pages_are_printed_beneath_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own colours reach the terminal; control characters of others are escaped."""
    beneath = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Screen(beneath))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    make_console().print(EVIL, style="red", markup=False)
    assert "\x1b[31m" in beneath.getvalue()
    require_harmless(COLOURS.sub("", beneath.getvalue()))
