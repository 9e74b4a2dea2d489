"""The keys of a cluster are created once, kept, and never replaced silently."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from zonewise.api.errors import ConfigError
from zonewise.embedded.apiserver.auth.identity import Identity
from zonewise.runtime.webhook.issuer import issue

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
FILES = ("ca.crt", "ca.key", "owner.token", "serving.crt", "serving.key", "tokens.key")


def identity(folder: Path, *, now: dt.datetime = NOW) -> Identity:
    return Identity(folder, host="127.0.0.1", now=now)


def read_keys(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}


def other_key(folder: Path) -> bytes:
    del folder
    return issue(["x"], now=NOW, lifetime=dt.timedelta(days=9)).key


DAMAGE: dict[str, tuple[str, Callable[[Path], bytes] | bytes | None]] = {
    "garbage ca.key": ("ca.key", b"garbage"),
    "empty ca.key": ("ca.key", b""),
    "another ca.key": ("ca.key", other_key),
    "no ca.key": ("ca.key", None),
    "garbage ca.crt": ("ca.crt", b"garbage"),
    "no ca.crt": ("ca.crt", None),
    "garbage tokens.key": ("tokens.key", b"garbage"),
    "no tokens.key": ("tokens.key", None),
    "empty owner.token": ("owner.token", b""),
    "blank owner.token": ("owner.token", b" \n"),
    "short owner.token": ("owner.token", b"a"),
    "binary owner.token": ("owner.token", b"\xff\x00" * 20),
    "no owner.token": ("owner.token", None),
    "garbage serving.crt": ("serving.crt", b"garbage"),
    "garbage serving.key": ("serving.key", b"garbage"),
}


def test_keys_are_made_once_and_kept(tmp_path: Path) -> None:
    """A second start has the same authority, keys and token."""
    first = identity(tmp_path)
    before = read_keys(tmp_path)
    assert tuple(sorted(before)) == FILES
    assert identity(tmp_path).owner_token == first.owner_token
    assert read_keys(tmp_path) == before


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_or_missing_key_is_refused(tmp_path: Path, case: str) -> None:
    """A damaged or missing key is one sentence, and no key is replaced."""
    identity(tmp_path)
    name, data = DAMAGE[case]
    path = tmp_path / "keys" / name
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data(tmp_path) if callable(data) else data)
    before = read_keys(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        identity(tmp_path)
    text = str(refusal.value)
    assert text.startswith(f"{path} is ")
    assert "restore it from a copy, or delete the folder" in text
    assert read_keys(tmp_path) == before, "a refusal changes nothing"


@pytest.mark.parametrize("gone", ["serving.key", "serving.crt"])
def test_a_serving_certificate_is_created_again(tmp_path: Path, gone: str) -> None:
    """The serving certificate is created again; the authority stays."""
    identity(tmp_path)
    before = read_keys(tmp_path)
    (tmp_path / "keys" / gone).unlink()
    identity(tmp_path).tls()
    after = read_keys(tmp_path)
    assert {name for name in FILES if after[name] != before[name]} == {"serving.crt", "serving.key"}


@pytest.mark.parametrize("present", range(len(FILES)))
def test_a_killed_first_start_continues(tmp_path: Path, present: int) -> None:
    """Keys are created one after the other; those that exist are kept."""
    order = ("ca.key", "ca.crt", "tokens.key", "owner.token", "serving.key", "serving.crt")
    identity(tmp_path)
    before = read_keys(tmp_path)
    for name in order[present:]:
        (tmp_path / "keys" / name).unlink()
    identity(tmp_path).tls()
    after = read_keys(tmp_path)
    assert tuple(sorted(after)) == FILES
    stays = order[:present] if present != 1 else ()  # a key without its certificate is of no use
    assert all(after[name] == before[name] for name in stays if name != "serving.key")


def test_an_expiring_authority_is_replaced(tmp_path: Path) -> None:
    """After ten years there is a new authority; the owner's token stays."""
    before = identity(tmp_path).owner_token
    later = identity(tmp_path, now=NOW + dt.timedelta(days=3640))
    later.tls()
    assert later.owner_token == before


def test_kubeconfigs_of_two_clusters_can_be_merged(tmp_path: Path) -> None:
    """Names of context, cluster and user are unique to the cluster, and stable."""
    names = []
    for folder in ("one", "two", "one"):
        (tmp_path / folder).mkdir(exist_ok=True)
        path = identity(tmp_path / folder).write_kubeconfig("https://127.0.0.1:6443")
        config = json.loads(path.read_text())
        (context,), (cluster,), (user,) = (
            config[kind] for kind in ("contexts", "clusters", "users")
        )
        assert context["context"] == {"cluster": cluster["name"], "user": user["name"]}
        assert config["current-context"] == context["name"]
        names.append((context["name"], cluster["name"], user["name"]))
    first, two, again = names
    assert first == again
    assert not set(first) & set(two)
