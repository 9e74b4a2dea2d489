"""The programs of a real control plane: built from pinned Go modules, kept outside the tree.

A `Suite` is what is built and cached together. Its folder name carries its version and a digest of
every go.mod, go.sum and flag that went into it, so a changed pin is another folder and a folder
that exists is complete and current: it is filled under another name and renamed at the very end.
Finding an existing suite costs a stat, runs no Go and uses no network.

One build at a time per machine and user (a lock file): a second caller waits and then finds the
result. Commands are built one after the other; Go itself uses all cores, and its own caches make a
repeated or interrupted build cheap.

`KUBEBUILDER_ASSETS`, when set, is a folder of ready programs and is used instead of building.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tools.realkube import toolchain
from tools.realkube.errors import RealKubeError, tail

VERSION = "v1.36.4"
ETCD_VERSION = "v3.6.5"
ASSETS = "KUBEBUILDER_ASSETS"
HERE = Path(__file__).parent
POLL = 1.0
HEARTBEAT = 30.0
NETWORK = re.compile(
    r"dial tcp|no such host|i/o timeout|connection re(?:fused|set)|TLS handshake|proxyconnect"
    r"|unexpected EOF|module lookup disabled|\b50[234]\b"
)


@dataclass(frozen=True)
class Module:
    """One go.mod with the commands built from it, and the strings stamped into them.

    `files` are copies of files of the modules that these commands import, kept beside the commands
    under the given names: the path of a module, a colon, the path of the file in it.
    """

    folder: Path
    commands: Mapping[str, str]
    stamps: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        stamped = "".join(f" -X {name}={value}" for name, value in self.stamps.items())
        return ["-mod=readonly", "-trimpath", "-buildvcs=false", f"-ldflags=-s -w{stamped}"]

    def digest(self) -> bytes:
        parts = [(self.folder / name).read_bytes() for name in ("go.mod", "go.sum")]
        parts += [repr(sorted(self.commands.items())).encode(), repr(self.flags).encode()]
        if self.files:
            parts.append(repr(sorted(self.files.items())).encode())
        return hashlib.sha256(b"\0".join(parts)).digest()


@dataclass(frozen=True)
class Suite:
    """Modules whose programs are built, cached and found together."""

    name: str
    version: str
    modules: tuple[Module, ...]

    @property
    def key(self) -> str:
        digest = hashlib.sha256(b"".join(module.digest() for module in self.modules)).hexdigest()
        return f"{self.name}-{self.version}-{platform.machine()}-{digest[:12]}"

    @property
    def commands(self) -> list[str]:
        return [command for module in self.modules for command in module.commands]


@dataclass(frozen=True)
class Binaries:
    """A folder of programs that are there."""

    folder: Path

    def path(self, name: str) -> Path:
        """The program called `name`; an error if this folder does not have it."""
        path = self.folder / name
        if not os.access(path, os.X_OK):
            hint = f"unset {ASSETS} to have it built" if ASSETS in os.environ else "build it anew"
            raise RealKubeError(f"There is no program {name} in {self.folder}; {hint}.")
        return path


def stamps(version: str) -> dict[str, str]:
    """What Kubernetes' programs need at link time, or clients see v0.0.0."""
    major, minor, _ = version.removeprefix("v").split(".")
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


KUBERNETES = Suite(
    "kubernetes",
    VERSION,
    (
        Module(HERE / "etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, {}),
        Module(
            HERE / "kubernetes",
            {
                name: f"k8s.io/kubernetes/cmd/{name}"
                for name in (
                    "kube-apiserver",
                    "kubectl",
                    "kube-controller-manager",
                    "kube-scheduler",
                    "kube-proxy",
                )
            },
            stamps(VERSION),
        ),
    ),
)


def cache_folder() -> Path:
    """Where programs are kept between runs: outside the tree, per user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "zonewise" / "realkube"


def find(suite: Suite = KUBERNETES) -> Binaries | None:
    """The suite if it is there already; never builds, never uses the network."""
    assets = os.environ.get(ASSETS)
    if assets:
        if not Path(assets).is_dir():
            raise RealKubeError(f"{ASSETS} names {assets}, which is no folder.")
        return Binaries(Path(assets).absolute())
    folder = cache_folder() / suite.key
    return Binaries(folder) if folder.is_dir() else None


def build(suite: Suite = KUBERNETES, *, teller: Teller | None = None) -> Binaries:
    """The suite, built first if it is not there; the teller shows the progress."""
    binaries = find(suite)
    if binaries is not None:
        return binaries
    teller = teller or Teller()
    cache = cache_folder()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RealKubeError(
            f"The folder {cache} for built programs cannot be made ({error.strerror}); "
            "set XDG_CACHE_HOME to one that can."
        ) from error
    with locked(cache / "lock", teller):
        return find(suite) or construct(suite, cache, teller)


def construct(suite: Suite, cache: Path, teller: Teller) -> Binaries:
    """Build every command of a suite into a new folder; the caller holds the lock."""
    for stale in cache.glob(f"{suite.key}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    go = toolchain.find(cache, teller.say)
    began = time.monotonic()
    teller.say(
        f"building {', '.join(suite.commands)} ({suite.version}) with Go; "
        "with cold caches this takes minutes"
    )
    log = cache / f"{suite.key}.log"
    partial = Path(tempfile.mkdtemp(prefix=f"{suite.key}.partial-", dir=cache))
    try:
        for module in suite.modules:
            for command in module.commands:
                compile_command(go, module, command, into=partial, log=log, teller=teller)
            copy_files(go, module, into=partial)
        partial.chmod(0o755)
        folder = cache / suite.key
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    teller.say(f"built all in {span(time.monotonic() - began)}")
    return Binaries(folder)


def compile_command(
    go: Path, module: Module, command: str, *, into: Path, log: Path, teller: Teller
) -> None:
    """Run one `go build`; its own list of compiled packages, in the log, is the progress."""
    arguments = [str(go), "build", "-v", *module.flags, "-o", str(into / command)]
    began = time.monotonic()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [*arguments, module.commands[command]],
            cwd=module.folder,
            env=toolchain.environment(go),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
        ) as process,
    ):
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL)
                teller.show(f"{command}: {progress(log)}, {span(time.monotonic() - began)}")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        raise RealKubeError(failure(command, log))
    teller.say(f"{command}: built in {span(time.monotonic() - began)}")


def copy_files(go: Path, module: Module, *, into: Path) -> None:
    """Copy files of modules that a build has downloaded and verified."""
    for name, source in module.files.items():
        path, _, file = source.partition(":")
        done = subprocess.run(
            [str(go), "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path],
            cwd=module.folder,
            env=toolchain.environment(go),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            if done.returncode != 0:
                raise RealKubeError(f"The module {path} was not found: {done.stderr.strip()}")
            shutil.copyfile(Path(done.stdout.strip()) / file, into / name)
        except OSError as error:
            raise RealKubeError(
                f"The module {path} has no file {file} ({error.strerror})."
            ) from error


def progress(log: Path) -> str:
    """How far a build is, read from what Go has printed up to now."""
    lines = log.read_bytes().splitlines()
    downloads = sum(line.startswith(b"go: downloading") for line in lines)
    compiled = len(lines) - downloads
    if lines and lines[-1].startswith(b"go: downloading"):
        return f"{downloads} modules downloaded"
    return f"{compiled} packages compiled"


def failure(command: str, log: Path) -> str:
    """One sentence, and the end of Go's output."""
    text = tail(log)
    if NETWORK.search(text):
        proxy = os.environ.get("GOPROXY") or "Go's default"
        return (
            f"Building {command} failed because Go modules could not be downloaded; the first "
            f"build needs the network (module proxy: {proxy}):\n{text}"
        )
    return f"Building {command} failed; all output is in {log}, its end is:\n{text}"


@contextlib.contextmanager
def locked(path: Path, teller: Teller) -> Iterator[None]:
    """Hold a file lock; the kernel releases it when its holder ends in any way."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            teller.say("another process is building; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def span(seconds: float) -> str:
    """A duration in words."""
    whole = round(seconds)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02} s"


class Teller:
    """Progress on stderr: on a terminal one line rewritten in place, elsewhere now and then a line.

    A log that stays silent for minutes looks like a program that hangs, one that gets a line every
    second cannot be read.
    """

    def __init__(self, stream: TextIO | None = None, *, heartbeat: float = HEARTBEAT) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._heartbeat = heartbeat
        self._written_at = time.monotonic()
        self._rewriting = False

    def say(self, sentence: str) -> None:
        """Write a line that stays."""
        self._write(f"{sentence}\n")
        self._rewriting = False

    def show(self, sentence: str) -> None:
        """Show how far the work is."""
        if self._terminal:
            self._write(sentence)
            self._rewriting = True
        elif time.monotonic() - self._written_at >= self._heartbeat:
            self.say(sentence)

    def _write(self, text: str) -> None:
        self._stream.write(("\r\033[K" if self._rewriting else "") + text)
        self._stream.flush()
        self._written_at = time.monotonic()
