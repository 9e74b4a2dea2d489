"""`python -m tools.conformance [PART…]`: run Kubernetes' own specs and write docs/conformance.md.

The specs are those that a real control plane passes with simulated nodes
(`tests/vectors/conformance.tsv`). The program that runs them is built once from Kubernetes' module,
like the control plane itself, and kept in the same cache. Every part runs on a fresh embedded
cluster with two Ready nodes: core specs of the API server on ``--api-only``, all others on a
cluster with controllers. Specs that are not run keep their row on the page.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.contract.embedded import embedded

from tools.realkube.binaries import VERSION, build, cache_folder
from tools.realkube.toolchain import environment, find

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LIST = ROOT / "tests" / "vectors" / "conformance.tsv"
REPORT = ROOT / "docs" / "conformance.md"
MODULE = HERE / "go"
PACKAGE = "k8s.io/kubernetes/test/e2e"
FLAGS = (
    "--provider=skeleton",
    "--kube-api-content-type=application/json",
    "--allowed-not-ready-nodes=-1",
    "--minStartupPods=0",
    "--node-schedulable-timeout=5s",
    "--system-pods-startup-timeout=1s",
    "--ginkgo.timeout=2h",
    "--ginkgo.v",
)
PARTS = ("api-server", "living-cluster", "hints")
ABSENT = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy", "CustomResourcePublishOpenAPI")
"""Features that the embedded cluster does not have; some of these specs would never end."""
UNTAINTED = '{"spec":{"taints":null}}'
NODE = """\
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {kubernetes.io/hostname: %s, kubernetes.io/os: linux}}
status:
  capacity: {cpu: "8", memory: 32Gi, pods: "110"}
  allocatable: {cpu: "8", memory: 32Gi, pods: "110"}
  conditions: [{type: Ready, status: "True", reason: KubeletReady}]
  addresses: [{type: InternalIP, address: 10.0.0.1}]
"""


class Spec(NamedTuple):
    """One row of the list."""

    part: str
    need: str
    seconds: int
    name: str


def specs() -> list[Spec]:
    """The specs that a real control plane passes here."""
    with LIST.open() as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [
            Spec(row["part"], row["need"], int(row["seconds"]), row["spec"].strip()) for row in rows
        ]


def program() -> Path:
    """The program that runs specs, built if it is not there."""
    digest = hashlib.sha256(
        b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    ).hexdigest()
    path = cache_folder() / f"conformance-{VERSION}-{digest[:12]}" / "e2e.test"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    go = find(cache_folder(), print)
    print("building Kubernetes' specs, 5 to 10 minutes once", flush=True)
    part = path.with_suffix(".part")
    subprocess.run(
        [go, "test", "-c", "-vet=off", "-mod=readonly", "-o", part, PACKAGE],
        cwd=MODULE,
        env=environment(go),
        check=True,
    )
    part.rename(path)
    return path


def run(chosen: Iterable[Spec], kubeconfig: Path, folder: Path) -> dict[str, str]:
    """Run specs in one go; their outcome by name."""
    focus = "|".join(re.escape(spec.name.replace(" [Conformance]", "")) for spec in chosen)
    done = subprocess.run(
        [
            program(),
            *FLAGS,
            f"--kubeconfig={kubeconfig}",
            f"--ginkgo.focus={focus}",
            f"--report-dir={folder}",
        ],
        cwd=folder,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdout=(folder / "log").open("wb"),
        stderr=subprocess.STDOUT,
        check=False,
    )
    reports = sorted(folder.glob("junit*.xml"))
    if not reports:
        print((folder / "log").read_text()[-4000:], file=sys.stderr)
        raise SystemExit(f"the specs ended with {done.returncode} and left no report")
    outcome = {}
    for case in ElementTree.parse(reports[0]).iter("testcase"):
        name = case.get("name", "").removeprefix("[It] ")
        if case.find("skipped") is None:
            failed = case.find("failure") is not None or case.find("error") is not None
            outcome[" ".join(name.split())] = "failed" if failed else "passed"
    return outcome


def report(outcome: dict[Spec, str]) -> str:
    """The page of the docs."""
    lines = [
        "# Conformance",
        "",
        "Results of Kubernetes' own conformance specs on the embedded cluster: `make conformance`",
        f"runs those that a real control plane ({VERSION}) passes with simulated nodes, and writes",
        "this page. An absent spec needs something that the embedded cluster does not have:",
        "[embedded-reference.md](embedded-reference.md#what-it-is-not).",
        "",
        "| part | need | passed | of |",
        "|---|---|---|---|",
    ]
    groups = sorted({(spec.part, spec.need) for spec in outcome})
    for part, need in groups:
        mine = [spec for spec in outcome if (spec.part, spec.need) == (part, need)]
        passed = sum(outcome[spec] == "passed" for spec in mine)
        lines.append(f"| {part} | {need} | {passed} | {len(mine)} |")
    lines += ["", "| part | need | outcome | spec |", "|---|---|---|---|"]
    for spec, state in outcome.items():
        lines.append(f"| {spec.part} | {spec.need} | {state} | {_cell(spec)} |")
    return "\n".join(lines) + "\n"


def known(page: str) -> dict[Spec, str]:
    """The outcome of every spec of the list, as the page has it."""
    rows = [line.split(" | ", 3) for line in page.splitlines() if line.count(" | ") >= 3]
    reported = {(row[0].removeprefix("| "), row[3].removesuffix(" |")): row[2] for row in rows}
    return {
        spec: "absent" if _absent(spec) else reported.get((spec.part, _cell(spec)), "not run")
        for spec in specs()
    }


def _absent(spec: Spec) -> bool:
    return spec.need == "wide" and any(word in spec.name for word in ABSENT)


def _cell(spec: Spec) -> str:
    return spec.name.replace("|", "\\|")


def _outcome(spec: Spec, outcome: dict[str, str]) -> str:
    expected = " ".join(spec.name.split())
    for name, state in outcome.items():
        if expected in name or name in expected:
            return state
    return "not run"


def conduct(chosen: list[Spec], folder: Path, *, alive: bool) -> dict[Spec, str]:
    """Run specs on a cluster of their own; their output is ``log`` in the folder."""
    kubectl = str(build().path("kubectl"))
    with embedded(content="--empty" if alive else "--api-only") as kubeconfig:
        command = [kubectl, "--kubeconfig", str(kubeconfig)]
        for node in ("node-1", "node-2"):
            create = [*command, "create", "-f", "-"]
            subprocess.run(create, input=NODE % (node, node), text=True, check=True)
            if not alive:
                # A new node is tainted until its kubelet reports; these have none.
                clear = [*command, "patch", "node", node, "--type=merge", "-p", UNTAINTED]
                subprocess.run(clear, check=True)
        if alive:
            ready = [*command, "wait", "--for=condition=Ready", "node", "--all", "--timeout=60s"]
            subprocess.run(ready, check=True)
        outcome = run(chosen, kubeconfig, folder)
    return {spec: _outcome(spec, outcome) for spec in chosen}


def main() -> int:
    """Run the chosen parts."""
    options = argparse.ArgumentParser(prog="python -m tools.conformance", description=__doc__)
    options.add_argument("parts", nargs="*", default=PARTS, help="parts of the list")
    options.add_argument("--need", choices=("core", "wide", "all"), default="all")
    options.add_argument("--only", default="", help="a phrase that the spec's name has")
    options.add_argument("--log", type=Path, help="keep the specs' own output in this file")
    given = options.parse_args()
    outcome: dict[Spec, str] = {}
    for part, alive in itertools.product(given.parts, (False, True)):
        chosen = [
            spec
            for spec in specs()
            if spec.part == part
            and not _absent(spec)
            and alive == ((spec.part, spec.need) != ("api-server", "core"))
            and given.need in {"all", spec.need}
            and given.only in spec.name
        ]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as name:
            try:
                outcome |= conduct(chosen, Path(name), alive=alive)
            finally:
                log = Path(name) / "log"
                if given.log and log.exists():
                    with given.log.open("ab") as file:
                        file.write(log.read_bytes())
    REPORT.write_text(report(known(REPORT.read_text()) | outcome))
    bad = [spec for spec, state in outcome.items() if state != "passed"]
    print(f"{len(outcome) - len(bad)} passed, {len(bad)} failed")
    for spec in bad:
        print(f"  {outcome[spec]}: {spec.need} {spec.name}")
    return int(any(spec.need == "core" for spec in bad))


if __name__ == "__main__":
    sys.exit(main())
