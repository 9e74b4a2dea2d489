"""Kubeconfig files: found, merged and read, with every fault named by file and entry.

Several files make one configuration: the first file that names a cluster, user or context defines
it, the first that sets ``current-context`` chooses, and relative paths are relative to the file
they are in. Missing files are skipped here; a file that was named explicitly is checked by the
caller.

Entries are checked when they are used, so a broken user that is not selected does no harm. Reading
is synchronous and bounded; nothing is ever written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zonewise.api.errors import ConfigError
from zonewise.runtime.config.yaml_fields import Fields, load_fields, load_plain

EXEC_EXTENSION = "client.authentication.k8s.io/exec"
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigContext:
    """A cluster, a user and a namespace, under one name."""

    name: str
    cluster: str
    user: str
    namespace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigCluster:
    """Where an API server is and how it is recognised. ``extension`` is for exec plugins."""

    name: str
    server: str
    authority: bytes | Path | None = field(default=None, repr=False)
    server_name: str = ""
    verify: bool = True
    proxy: str = field(default="", repr=False)
    compression: bool = True
    extension: object = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecPlugin:
    """A program that prints credentials."""

    api_version: str
    command: str
    arguments: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    install_hint: str = ""
    interactive_mode: str = "IfAvailable"
    provide_cluster_info: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigUser:
    """A user. At most one of the ways to get an ``Authorization`` header is set."""

    name: str
    chain: bytes | Path | None = field(default=None, repr=False)
    key: bytes | Path | None = field(default=None, repr=False)
    token: str = field(default="", repr=False)
    token_file: Path | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    act_as: str = ""
    act_as_uid: str = ""
    act_as_groups: tuple[str, ...] = ()
    act_as_extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    plugin: ExecPlugin | None = None
    oidc: Mapping[str, str] | None = field(default=None, repr=False)


class Kubeconfig:
    """What one or several kubeconfig files say together."""

    def __init__(self, files: Iterable[Path]) -> None:
        self.files: list[Path] = []
        self.current_context = ""
        self._contexts: dict[str, Fields] = {}
        self._clusters: dict[str, Fields] = {}
        self._users: dict[str, Fields] = {}
        for path in dict.fromkeys(files):
            self._merge(path)

    def names(self, kind: Literal["context", "cluster", "user"]) -> tuple[str, ...]:
        """The names there are to choose from."""
        entries = {"context": self._contexts, "cluster": self._clusters, "user": self._users}
        return tuple(entries[kind])

    def context(self, name: str) -> KubeconfigContext:
        """The context of that name."""
        fields = self._pick(self._contexts, "context", name, "")
        return KubeconfigContext(
            name=name,
            cluster=fields.text("cluster"),
            user=fields.text("user"),
            namespace=fields.text("namespace"),
        )

    def cluster(self, name: str, *, named_by: str = "") -> KubeconfigCluster:
        """The cluster of that name; ``named_by`` says in errors what refers to it."""
        fields = self._pick(self._clusters, "cluster", name, named_by)
        verify = not fields.flag("insecure-skip-tls-verify")
        authority = fields.data_or_path("certificate-authority")
        if authority is not None and not verify:
            raise fields.wrong(
                "insecure-skip-tls-verify",
                "cannot be combined with a certificate authority; remove one of the two",
            )
        server = fields.word("server")
        if not server:
            raise fields.wrong("server", "is missing; write it like https://host:6443")
        return KubeconfigCluster(
            name=name,
            server=server,
            authority=authority,
            server_name=fields.word("tls-server-name"),
            verify=verify,
            proxy=fields.word("proxy-url"),
            compression=not fields.flag("disable-compression"),
            extension=_exec_extension(fields, name),
        )

    def user(self, name: str, *, named_by: str = "") -> KubeconfigUser:
        """The user of that name; ``named_by`` says in errors what refers to it."""
        fields = self._pick(self._users, "user", name, named_by)
        chain = fields.data_or_path("client-certificate")
        key = fields.data_or_path("client-key")
        if (chain is None) != (key is None):
            missing = "client-certificate" if chain is None else "client-key"
            raise fields.wrong(missing, "is missing; a client certificate needs its key")
        token, username = fields.word("token"), fields.text("username")
        password = fields.text("password")
        if token and (username or password):
            raise fields.wrong("token", "and username are both there; keep one way to log in")
        plugin, oidc = _exec_plugin(fields), _oidc(fields)
        if plugin is not None and oidc is not None:
            raise fields.wrong("exec", "and auth-provider are both there; keep one way to log in")
        extra = fields.mapping("as-user-extra")
        user = KubeconfigUser(
            name=name,
            chain=chain,
            key=key,
            token=token,
            token_file=fields.path("tokenFile"),
            username=username,
            password=password,
            act_as=fields.text("as"),
            act_as_uid=fields.text("as-uid"),
            act_as_groups=fields.texts("as-groups"),
            act_as_extra=tuple((key, extra.texts(key)) for key in extra),
            plugin=plugin,
            oidc=oidc,
        )
        if not user.act_as and (user.act_as_uid or user.act_as_groups or user.act_as_extra):
            raise fields.wrong("as", "is missing; groups, a uid or extras are for acting as a user")
        return user

    def _pick(self, entries: dict[str, Fields], kind: str, name: str, named_by: str) -> Fields:
        if name in entries:
            return entries[name]
        where = " and ".join(str(path) for path in self.files) or "the kubeconfig"
        known = ", ".join(list(entries)[:8]) + (", …" if len(entries) > 8 else "")
        choice = f"choose one of: {known}" if entries else f"it has no {kind}s at all, add one"
        origin = f", which {named_by} names" if named_by else ""
        raise ConfigError(f'there is no {kind} "{name}" in {where}{origin}; {choice}')

    def _merge(self, path: Path) -> None:
        content = load_fields(path)
        if content is None:
            return
        kind = content.text("kind")
        if kind not in ("", "Config"):
            raise ConfigError(f"{path} holds a {kind[:80]}, not a kubeconfig; give another file")
        self.files.append(path)
        self.current_context = self.current_context or content.text("current-context")
        for listed, noun, entries in (
            ("contexts", "context", self._contexts),
            ("clusters", "cluster", self._clusters),
            ("users", "user", self._users),
        ):
            own: set[str] = set()
            for item in content.entries(listed):
                name = item.text("name")
                if not name:
                    raise item.wrong("name", f"is missing; every {noun} needs one")
                if name in own:
                    raise content.wrong(
                        listed, f'names "{name}" twice; keep one entry of each name'
                    )
                own.add(name)
                entries.setdefault(name, item.mapping(noun, title=f'{noun} "{name}"'))


def default_files(environ: Mapping[str, str]) -> list[Path]:
    """The files to read when none is named: those of ``KUBECONFIG``, else ``~/.kube/config``."""
    listed = [name for name in environ.get("KUBECONFIG", "").split(os.pathsep) if name]
    if listed:
        return [Path(name) for name in listed]
    home = environ.get("HOME")
    return [Path(home) / ".kube" / "config"] if home else []


def _exec_plugin(user: Fields) -> ExecPlugin | None:
    fields = user.mapping("exec")
    if not fields:
        return None
    version = fields.word("apiVersion")
    if version not in EXEC_VERSIONS:
        actual = f'not "{version[:80]}"' if version else "and is missing"
        raise fields.wrong(
            "apiVersion", f"must be {' or '.join(EXEC_VERSIONS)}, {actual}; update the plugin"
        )
    command = fields.word("command")
    if not command:
        raise fields.wrong("command", "is missing; name the program that prints credentials")
    if os.sep in command:
        command = str((user.file.parent / command).absolute())
    mode = fields.word("interactiveMode")
    if not mode and version == EXEC_VERSIONS[0]:
        raise fields.wrong("interactiveMode", "is missing; write IfAvailable, Never or Always")
    if mode not in ("", "IfAvailable", "Never", "Always"):
        raise fields.wrong(
            "interactiveMode", f'must be IfAvailable, Never or Always, not "{mode[:40]}"'
        )
    return ExecPlugin(
        api_version=version,
        command=command,
        arguments=fields.texts("args"),
        environment={item.text("name"): item.text("value") for item in fields.entries("env")},
        install_hint=fields.text("installHint"),
        interactive_mode=mode or "IfAvailable",
        provide_cluster_info=fields.flag("provideClusterInfo"),
    )


def _oidc(user: Fields) -> Mapping[str, str] | None:
    fields = user.mapping("auth-provider")
    if not fields:
        return None
    name = fields.text("name")
    if name != "oidc":
        raise fields.wrong(
            "name",
            f'must be oidc, not "{name[:40]}"; clients no longer have this provider, '
            "use its exec plugin instead",
        )
    config = fields.mapping("config")
    values = {key: config.word(key) for key in config}
    authority = config.path("idp-certificate-authority")
    if authority is not None:
        values["idp-certificate-authority"] = str(authority)
    for key in ("idp-issuer-url", "client-id"):
        if not values.get(key):
            raise config.wrong(key, "is missing; log in again with the tool that made this user")
    return values


def _exec_extension(fields: Fields, name: str) -> object:
    if not any(item.text("name") == EXEC_EXTENSION for item in fields.entries("extensions")):
        return None
    # Plugins get this value as it was meant, numbers as numbers.
    match load_plain(fields.file):
        case {"clusters": [*clusters]}:
            for cluster in clusters:
                match cluster:
                    case {"name": item_name, "cluster": {"extensions": [*extensions]}} if (
                        str(item_name) == name
                    ):
                        return next(
                            item.get("extension")
                            for item in extensions
                            if item.get("name") == EXEC_EXTENSION
                        )
    return None
