"""Kubeconfig files, good and bad."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.runtime.loopback import write_kubeconfig

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.kubeconfig import Kubeconfig, default_files


def config(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def user_of(tmp_path: Path, fields: dict[str, Any]) -> Any:
    return Kubeconfig([write_kubeconfig(tmp_path / "config", user=fields)]).user("u")


def test_the_first_file_wins_per_name(tmp_path: Path) -> None:
    """Several files make one configuration; the first that has a name defines it."""
    first = config(
        tmp_path / "a",
        {
            "contexts": [{"name": "x", "context": {"cluster": "c1", "user": "u1"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://first"}}],
        },
    )
    second = config(
        tmp_path / "b",
        {
            "current-context": "y",
            "contexts": [
                {"name": "x", "context": {"cluster": "never"}},
                {"name": "y", "context": {"cluster": "c", "namespace": "team"}},
            ],
            "clusters": [{"name": "c", "cluster": {"server": "https://second"}}],
            "users": [{"name": "u1", "user": {"token": "t"}}],
        },
    )
    third = config(tmp_path / "c", {"current-context": "x"})
    merged = Kubeconfig([first, tmp_path / "missing", second, third])
    assert merged.files == [first, second, third]
    assert merged.current_context == "y"
    assert merged.names("context") == ("x", "y")
    assert merged.context("x").cluster == "c1"
    assert merged.context("y").namespace == "team"
    assert merged.cluster("c").server == "https://first"
    assert merged.user("u1").token == "t"


def test_relative_paths_belong_to_their_file(tmp_path: Path) -> None:
    """A relative path is relative to the folder of the file it stands in."""
    folder = tmp_path / "deep"
    folder.mkdir()
    path = write_kubeconfig(
        folder / "config",
        cluster={"certificate-authority": "pki/ca.crt"},
        user={
            "client-certificate": "me.crt",
            "client-key": "/abs/me.key",
            "tokenFile": "../token",
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1beta1",
                "command": "./bin/login",
            },
        },
    )
    kubeconfig = Kubeconfig([path])
    assert kubeconfig.cluster("c").authority == folder / "pki/ca.crt"
    user = kubeconfig.user("u")
    assert user.chain == folder / "me.crt"
    assert user.key == Path("/abs/me.key")
    assert user.token_file == folder / "../token"
    assert user.plugin is not None
    assert user.plugin.command == str(folder / "bin/login")


def test_a_plugin_without_a_slash_is_found_on_the_path(tmp_path: Path) -> None:
    """A plugin's command is resolved against the file only if it is a path."""
    fields = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws"}
    assert user_of(tmp_path, {"exec": fields}).plugin.command == "aws"


def test_scalars_are_the_text_that_was_written(tmp_path: Path) -> None:
    """A token of digits and a namespace called ``no`` are strings, not numbers or booleans."""
    path = config(
        tmp_path / "config",
        "contexts: [{name: 1e3, context: {cluster: 0x10, namespace: no}}]\n"
        "users: [{name: 2020-01-01, user: {token: 0123}}]\n",
    )
    kubeconfig = Kubeconfig([path])
    assert kubeconfig.context("1e3").cluster == "0x10"
    assert kubeconfig.context("1e3").namespace == "no"
    assert kubeconfig.user("2020-01-01").token == "0123"


def test_space_is_kept_where_it_matters(tmp_path: Path) -> None:
    """A password or an environment variable may end in a space; a token's line break is dropped."""
    user = user_of(tmp_path, {"username": " u", "password": "p "})
    assert (user.username, user.password) == (" u", "p ")
    assert user_of(tmp_path, {"token": "t\n"}).token == "t"
    fields = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "x",
        "env": [{"name": "A", "value": " v "}],
    }
    assert user_of(tmp_path, {"exec": fields}).plugin.environment == {"A": " v "}


def test_data_wins_over_a_path(tmp_path: Path) -> None:
    """Inline certificates are used even if a file is named as well."""
    data = base64.b64encode(b"inline").decode()
    path = write_kubeconfig(
        tmp_path / "config",
        cluster={"certificate-authority": "ca", "certificate-authority-data": data},
    )
    assert Kubeconfig([path]).cluster("c").authority == b"inline"


def test_every_field_of_a_cluster(tmp_path: Path) -> None:
    """Names, proxies, compression and the plugins' extension are read with their types."""
    path = write_kubeconfig(
        tmp_path / "config",
        cluster={
            "tls-server-name": "kube",
            "insecure-skip-tls-verify": True,
            "proxy-url": "http://p:1",
            "disable-compression": True,
            "extensions": [
                {"name": "other", "extension": {"a": 1}},
                {
                    "name": "client.authentication.k8s.io/exec",
                    "extension": {"audience": 7, "on": True},
                },
            ],
        },
    )
    cluster = Kubeconfig([path]).cluster("c")
    assert (cluster.server_name, cluster.verify, cluster.proxy) == ("kube", False, "http://p:1")
    assert cluster.compression is False
    assert cluster.extension == {"audience": 7, "on": True}


def test_impersonation(tmp_path: Path) -> None:
    """The user to act as is read with groups, uid and extras."""
    user = user_of(
        tmp_path,
        {
            "as": "jane",
            "as-uid": "7",
            "as-groups": ["a", "b"],
            "as-user-extra": {"scopes": ["x", "y"]},
        },
    )
    assert (user.act_as, user.act_as_uid, user.act_as_groups) == ("jane", "7", ("a", "b"))
    assert user.act_as_extra == (("scopes", ("x", "y")),)


def test_no_secret_in_repr(tmp_path: Path) -> None:
    """The repr of a user shows no secret."""
    data = base64.b64encode(b"hush").decode()
    user = user_of(
        tmp_path,
        {
            "token": "hush",
            "client-key-data": data,
            "client-certificate-data": data,
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1beta1",
                "command": "x",
                "args": ["--password=hush"],
                "env": [{"name": "PASSWORD", "value": "hush"}],
            },
        },
    )
    assert "hush" not in repr(user)


def test_a_broken_entry_that_is_not_used_is_no_error(tmp_path: Path) -> None:
    """Entries are checked when they are chosen."""
    path = config(
        tmp_path / "config",
        {
            "clusters": [
                {"name": "good", "cluster": {"server": "https://a"}},
                {"name": "bad", "cluster": {"server": ["https://b"]}},
            ]
        },
    )
    kubeconfig = Kubeconfig([path])
    assert kubeconfig.cluster("good").server == "https://a"
    with pytest.raises(ConfigError, match=r'cluster "bad": server must be text, not a list'):
        kubeconfig.cluster("bad")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a: [", "is not YAML in line 2"),
        ("a: 1\n---\nb: 2\n", "is not YAML in line 2"),
        ("[" * 100_000, "is not YAML"),
        ("- " * 100_000, "is not YAML"),
        ("a: \x00", "is not YAML"),
        ("!!python/object/apply:os.getcwd []", "is not YAML"),
        ("just text", "is not a kubeconfig but a text"),
        ("- a\n- b\n", "is not a kubeconfig but a list"),
        ("kind: Pod\n", "holds a Pod, not a kubeconfig"),
        ("contexts: 7\n", "contexts must be a list of mappings, not a text"),
        ("users: [a]\n", "users must be a list of mappings"),
        ("clusters: {a: b}\n", "clusters must be a list of mappings, not a mapping"),
        ("clusters: [{cluster: {}}]\n", r"clusters\[0\]: name is missing"),
        ("users: [{name: [], user: {}}]\n", r"users\[0\]: name must be text, not a list"),
        ("users: [{name: a, user: b}]\n", r"users\[0\]: user must be a mapping, not a text"),
        ("users: [{name: a}, {name: a}]\n", 'users names "a" twice'),
        ("current-context: [a]\n", "current-context must be text"),
    ],
)
def test_faults_of_a_whole_file(tmp_path: Path, content: str, says: str) -> None:
    """The error about an invalid file has its name, the line and what to do."""
    path = config(tmp_path / "config", content)
    with pytest.raises(ConfigError, match=says) as error:
        Kubeconfig([path])
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"client-certificate": "a"}, "client-key is missing"),
        ({"client-key-data": "YQ=="}, "client-certificate is missing"),
        ({"client-key-data": "%%", "client-certificate": "a"}, "client-key-data is not base64"),
        ({"token": "a", "username": "b"}, "token and username are both there"),
        ({"token": {"a": "b"}}, "token must be text, not a mapping"),
        ({"as-groups": ["a"]}, "as is missing"),
        ({"as": "a", "as-groups": "b"}, "as-groups must be a list of texts"),
        ({"exec": {"command": "x"}}, "exec: apiVersion must be .* and is missing"),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}},
            "exec: apiVersion must be .*, not .*v1alpha1",
        ),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x"}},
            "exec: interactiveMode is missing",
        ),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "x",
                    "interactiveMode": "Sometimes",
                }
            },
            "exec: interactiveMode must be IfAvailable, Never or Always",
        ),
        (
            {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1"}},
            "exec: command is missing",
        ),
        (
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1beta1",
                    "command": "x",
                    "args": 7,
                }
            },
            "exec: args must be a list of texts",
        ),
        ({"auth-provider": {"name": "gcp"}}, "auth-provider: name must be oidc"),
        ({"auth-provider": {"name": "oidc"}}, "auth-provider: config: idp-issuer-url is missing"),
        (
            {
                "auth-provider": {
                    "name": "oidc",
                    "config": {"idp-issuer-url": "https://i", "client-id": "c"},
                },
                "exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "x"},
            },
            "exec and auth-provider are both there",
        ),
    ],
)
def test_faults_of_a_user(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    """Every fault of a user names the file, the user, the field and what is wrong."""
    with pytest.raises(ConfigError, match=f'user "u": {says}') as error:
        user_of(tmp_path, fields)
    assert str(tmp_path / "config") in str(error.value)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"server": ""}, "server is missing"),
        ({"server": None}, "server is missing"),
        ({"certificate-authority-data": "a"}, "certificate-authority-data is not base64"),
        ({"insecure-skip-tls-verify": "maybe"}, "insecure-skip-tls-verify must be true or false"),
        (
            {"insecure-skip-tls-verify": True, "certificate-authority": "a"},
            "insecure-skip-tls-verify cannot be combined",
        ),
        ({"extensions": "x"}, "extensions must be a list of mappings"),
    ],
)
def test_faults_of_a_cluster(tmp_path: Path, fields: dict[str, Any], says: str) -> None:
    """Every fault of a cluster names the file, the cluster, the field and what is wrong."""
    path = write_kubeconfig(tmp_path / "config", cluster=fields)
    with pytest.raises(ConfigError, match=f'cluster "c": {says}'):
        Kubeconfig([path]).cluster("c")


def test_a_missing_name_lists_what_is_there(tmp_path: Path) -> None:
    """The error about a missing entry lists the existing ones and says what refers to it."""
    kubeconfig = Kubeconfig([write_kubeconfig(tmp_path / "config")])
    with pytest.raises(ConfigError, match=r'no context "prod" in .*; choose one of: dev'):
        kubeconfig.context("prod")
    with pytest.raises(ConfigError, match=r'no user "x" in .*, which context "dev" names; choose'):
        kubeconfig.user("x", named_by='context "dev"')
    with pytest.raises(ConfigError, match="it has no contexts at all"):
        Kubeconfig([config(tmp_path / "empty", "")]).context("dev")


def test_where_files_are_looked_for() -> None:
    """KUBECONFIG is a list of paths; without it the file in the home folder is used."""
    assert default_files({"KUBECONFIG": "/a::/b", "HOME": "/h"}) == [Path("/a"), Path("/b")]
    assert default_files({"KUBECONFIG": "", "HOME": "/h"}) == [Path("/h/.kube/config")]
    assert default_files({}) == []


def test_a_directory_and_an_unreadable_file(tmp_path: Path) -> None:
    """A file that cannot be read is reported as such, not as missing."""
    with pytest.raises(ConfigError, match="is a directory"):
        Kubeconfig([tmp_path])
    with pytest.raises(ConfigError, match=r"cannot read the kubeconfig .*file name too long"):
        Kubeconfig([tmp_path / ("x" * 300)])
    big = tmp_path / "big"
    with big.open("wb") as file:
        file.truncate(11 << 20)
    with pytest.raises(ConfigError, match="too large"):
        Kubeconfig([big])
