"""The public names of the package, and what importing it loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from zonewise import api

PACKAGE = Path(api.__file__).parent
FORBIDDEN = {
    "aiohttp",
    "asyncio",
    "os",
    "random",
    "socket",
    "sqlite3",
    "subprocess",
    "threading",
    "time",
}


def test_every_public_name_is_exported_once() -> None:
    """The face imports each name once, and exports it under its own name."""
    imports = ast.parse((PACKAGE / "__init__.py").read_text()).body[1:]
    aliases = [
        alias for node in imports if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert len({alias.name for alias in aliases}) == len(aliases) > 80
    for alias in aliases:
        assert alias.asname == alias.name
        assert getattr(api, alias.name) is not None


def test_names_that_others_build_on_stay() -> None:
    """Removing one of these names would break other packages."""
    promised = {
        "ApiError AlreadyExists BadRequest ConfigError Conflict ConnectionFailed Forbidden Gone",
        "Invalid LeadershipLost MethodNotAllowed NotFound ParseError PatchFailed ProtocolError",
        "ServerError Status StatusCause StatusDetails Terminal TooLarge TooManyRequests",
        "Unauthorized UnsupportedMediaType ZonewiseError Struct Resource Object ObjectMeta",
        "OwnerReference LabelSelector Condition Key Page Decoder decode encode convert to_builtins",
        "decoder page_decoder Unstructured unstructured Reason FeatureGates Quantity Selector",
        "Requirement FieldSelector NodeTerm NodeTerms quantity selector",
        "fieldselector nodeselector labels times",
        "Node Pod Service Namespace EndpointSlice LeanEndpointSlice Lease Event",
        "PodDisruptionBudget ReplicaSet Deployment StatefulSet DaemonSet StorageClass",
        "PersistentVolumeClaim PersistentVolume CSINode CSIDriver",
        "ValidatingWebhookConfiguration MutatingWebhookConfiguration CustomResourceDefinition",
    }
    names = {name for line in promised for name in line.split()}
    assert names <= vars(api).keys()


def test_nothing_here_does_io_or_reads_a_clock() -> None:
    """No module of the package imports a library for I/O, time or randomness."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            imported: list[str] = []
            if isinstance(node, ast.Import):
                imported = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                imported = [node.module or ""]
            roots = {name.partition(".")[0] for name in imported}
            assert not roots & FORBIDDEN, path.name


@pytest.mark.system
def test_importing_the_objects_loads_no_event_loop() -> None:
    """The command line can use the objects without importing asyncio."""
    heavy = "{'asyncio', 'aiohttp', 'ssl'}"
    code = f"import sys, zonewise.api; print(*sorted({heavy} & set(sys.modules)))"
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == ""
