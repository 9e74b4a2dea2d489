"""``zonewise takeover`` on ``zonewise up``: the map is written, refused, printed and cleared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.run_program import Result, apart
from tests.cli.up_program import SHAPE, ask_api, nothing_left, running, until

pytestmark = pytest.mark.system

CONFIG = "/api/v1/namespaces/zonewise-system/configmaps/csi"
LABEL = "topology.csi.zonewise.io/takeover.left"


def takeover(folder: Path, *words: str) -> Result:
    """The command against a running cluster."""
    return apart(folder.parent, "takeover", *words, "--kubeconfig", folder / "kubeconfig")


def parse_output(result: Result) -> Any:
    """The JSON of a command."""
    assert not result.err
    return json.loads(result.out)


def labelled(folder: Path) -> set[str]:
    """The nodes that stand in for left."""
    return {
        node["metadata"]["name"]
        for node in ask_api(folder, "GET", "/api/v1/nodes")["items"]
        if LABEL in node["metadata"]["labels"]
    }


@pytest.mark.timeout(300)
def test_a_domain_is_taken_and_given_back(tmp_path: Path) -> None:
    """Nodes are labelled by the map, a refused change changes nothing, a bad file is an error."""
    folder = tmp_path / "cluster"
    with nothing_left(folder), running(folder, *SHAPE):
        assert parse_output(takeover(folder, "status", "-o", "json")) == {
            "takeover": {},
            "error": "",
        }
        alive = takeover(folder, "set", "left", "--by", "right")
        assert alive.code == 1
        assert "2 of 2 nodes of left are Ready" in alive.sentence()
        assert "add --force" in alive.sentence()
        assert parse_output(takeover(folder, "status", "-o", "json"))["takeover"] == {}
        done = takeover(folder, "set", "left", "--by", "right", "--force", "-o", "json")
        assert done.code == 0
        status = parse_output(done)
        (warning,) = status.pop("warnings")
        assert warning["reason"] == "TakenNodesReady"
        assert "2 of 2 nodes of left are Ready" in warning["message"]
        assert status == {"takeover": {"left": ["right"]}, "error": ""}
        until(lambda: labelled(folder) == {"right-1", "right-2"})

        wrong = (("left", "left"), ("right", "left"), ("left", "right,all"), ("all", "left"))
        for words in (*wrong, ("right", "all")):
            refused = takeover(folder, "set", words[0], "--by", words[1], "--force")
            assert refused.code == 1
            assert "was not changed" in refused.sentence()
        missing = takeover(folder, "clear", "right")
        assert missing.code == 1
        assert "right is not taken over" in missing.sentence()
        for words in (("nowhere", "right"), ("left", "nowhere"), ("nowhere", "nowhere")):
            unknown = takeover(folder, "set", words[0], "--by", words[1])
            assert unknown.code == 1
            assert "no domain nowhere; the domains are left, right" in unknown.sentence()
        other = takeover(folder, "set", "left", "--by", "right", "--drivername", "x.y")
        assert other.code == 1
        assert "no CSI driver x.y; the cluster has csi.zonewise.io" in other.sentence()
        assert parse_output(takeover(folder, "status", "-o", "json"))["takeover"] == {
            "left": ["right"]
        }

        config_map = ask_api(folder, "GET", CONFIG)
        good = config_map["data"]["config.json"]
        config_map["data"]["config.json"] = good[:-9]
        ask_api(folder, "PUT", CONFIG, json.dumps(config_map).encode())

        def noticed() -> bool:
            wrong = takeover(folder, "status", "-o", "json")
            status = parse_output(wrong)
            return bool(wrong.code == 1 and status["error"] and status["takeover"])

        until(noticed)
        refused = takeover(folder, "clear", "left")
        assert refused.code == 1
        assert "correct it first" in refused.sentence()
        assert labelled(folder) == {"right-1", "right-2"}
        config_map = ask_api(folder, "GET", CONFIG)
        config_map["data"]["config.json"] = good
        ask_api(folder, "PUT", CONFIG, json.dumps(config_map).encode())
        done = takeover(folder, "clear", "left")
        assert (done.code, done.out) == (0, "left is given back; new pods start at home\n")
        until(lambda: not labelled(folder))


@pytest.mark.timeout(300)
def test_warnings_without_a_controller_or_a_ready_node(tmp_path: Path) -> None:
    """A missing controller is noted; a domain without a Ready node is given back with a warning."""
    folder = tmp_path / "cluster"
    with running(folder, "--api-only"):
        space = {"metadata": {"name": "zonewise-system"}}
        ask_api(folder, "POST", "/api/v1/namespaces", json.dumps(space).encode())
        body: Any = {"metadata": {"name": "csi"}, "data": {"config.json": '{"version": 2}'}}
        ask_api(folder, "POST", CONFIG.rpartition("/")[0], json.dumps(body).encode())
        done = takeover(folder, "set", "a", "--by", "b")
        assert (done.code, done.out) == (0, "a is taken over by b\n")
        assert "no controller has acted on it" in done.err
        key = "topology.csi.zonewise.io/zone"
        drivers = [{"name": "csi.zonewise.io", "nodeID": "n", "topologyKeys": [key]}]
        for zone in "ab":
            meta = {"name": f"{zone}-1", "labels": {key: zone}}
            ask_api(folder, "POST", "/api/v1/nodes", json.dumps({"metadata": meta}).encode())
            body = {"metadata": {"name": f"{zone}-1"}, "spec": {"drivers": drivers}}
            path = "/apis/storage.k8s.io/v1/csinodes"
            ask_api(folder, "POST", path, json.dumps(body).encode())
        done = takeover(folder, "clear", "a")
        assert done.code == 0
        assert "none of 1 nodes of a is Ready" in done.err
        assert "Pending until it is back" in done.err
        # Automatic takeover gives it a whole pause from now on.
        given_back = ask_api(folder, "GET", CONFIG)["metadata"]["annotations"]
        assert given_back["csi.zonewise.io/given-back"].startswith("a=20")


@pytest.mark.timeout(300)
def test_the_status_of_the_controller(tmp_path: Path) -> None:
    """Dead pools are reported while its map is in force; a manual takeover is not automatic."""
    folder = tmp_path / "cluster"
    with running(folder, "--api-only"):
        space = {"metadata": {"name": "zonewise-system"}}
        ask_api(folder, "POST", "/api/v1/namespaces", json.dumps(space).encode())
        mark = "csi.zonewise.io/automatic-takeover"
        body: Any = {
            "metadata": {"name": "csi", "annotations": {mark: "a,c"}},
            "data": {"config.json": '{"version": 2, "topology-takeover": {"a": ["all"]}}'},
        }
        ask_api(folder, "POST", CONFIG.rpartition("/")[0], json.dumps(body).encode())
        hold = {"reason": "StillDown", "message": "a waits", "object": "Domain/a"}
        dead = {"reason": "TakenPoolDead", "message": "pool p of a is dead", "object": "Pool/p"}
        status: Any = {"takeover": {"a": ["b"]}, "error": "", "warnings": [dead]}
        status["automatic"] = [hold]
        body = {
            "metadata": {"name": "csi-takeover"},
            "data": {"status.json": json.dumps(status)},
        }
        ask_api(folder, "POST", CONFIG.rpartition("/")[0], json.dumps(body).encode())
        # Its status is about another map.
        other = parse_output(takeover(folder, "status", "-o", "json"))
        assert "TakenPoolDead" not in json.dumps(other)
        done = takeover(folder, "set", "a", "--by", "b")
        assert (done.code, done.out) == (0, "a is taken over by b\n")
        assert "warning: TakenPoolDead" in done.err or "pool p of a is dead" in done.err
        assert "no controller has acted" not in done.err
        assert ask_api(folder, "GET", CONFIG)["metadata"]["annotations"] == {mark: "c"}
        status = parse_output(takeover(folder, "status", "-o", "json"))
        assert dead in status["warnings"]
        # A file of version 1 cannot express a takeover, so the map in force stays, and is printed.
        config_map = ask_api(folder, "GET", CONFIG)
        config_map["data"]["config.json"] = "[]"
        ask_api(folder, "PUT", CONFIG, json.dumps(config_map).encode())
        status = parse_output(takeover(folder, "status", "-o", "json"))
        assert (status["takeover"], status["error"], dead in status["warnings"]) == (
            {"a": ["b"]},
            "",
            True,
        )
        # While the configuration is wrong only the controller's status is known, cut to some lines.
        away = {"reason": "AwayFromHome", "message": "pod x is away", "object": "Pod/n/x"}
        strayed = {"reason": "AwayFromHome", "message": "pod y is away", "object": "Pod/n/y"}
        strayed |= {"fix": "Delete it."}
        status |= {
            "automatic": [hold],
            "awayFromHome": [strayed, away, strayed | {"message": "pod z is away"}],
            "furtherAwayFromHome": 6,
            "furtherWarnings": 2,
        }
        for name, key, text in (("csi", "config", "{"), ("csi-takeover", "status", status)):
            path = f"{CONFIG.rpartition('/')[0]}/{name}"
            config_map = ask_api(folder, "GET", path)
            config_map["data"][f"{key}.json"] = text if isinstance(text, str) else json.dumps(text)
            ask_api(folder, "PUT", path, json.dumps(config_map).encode())
        done = takeover(folder, "status")
        assert done.code == 1
        assert "automatic: a waits" in done.out
        assert (
            "away from home: 9\n  pod y is away\n  pod z is away\n    Delete it.\n"
            "  pod x is away\n  … and 6 more\n"
        ) in done.out
        assert "warning: and 2 more" in done.err
        assert parse_output(takeover(folder, "status", "-o", "json"))["furtherAwayFromHome"] == 6


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("set",),
        ("set", "a"),
        ("set", "a", "--by", " , "),
        ("clear",),
        ("clear", "a", "--by", "b"),
        ("clear", "a", "--force"),
        ("status", "--force"),
        ("status", "a"),
        ("give", "a"),
    ],
)
def test_wrong_usage(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Wrong usage is exit code 2 and a sentence, before any request."""
    refused = apart(tmp_path, "takeover", *words)
    assert refused.code == 2
    assert refused.sentence()
