"""The protocol's messages: generated from our text, and on the wire those of the Go module."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.json_format import MessageToDict
from tools.csi.binary import CSI
from tools.csi.generate import PROTOCOL, generated
from tools.realkube.binaries import find

from zonewise.csi.protocol import csi_pb2 as csi
from zonewise.csi.transport import methods
from zonewise.csi.transport.methods import Method


@pytest.mark.system
def test_the_generated_modules_are_current() -> None:
    """After a change of csi.proto ``python -m tools.csi generate`` must be run."""
    for name, text in generated().items():
        assert (PROTOCOL / name).read_text() == text
        assert "python -m tools.csi generate" in text


def test_methods_have_the_types_of_the_protocol() -> None:
    """Our table of calls is the protocol's: names, requests, answers."""
    declared_methods = [member for member in vars(methods).values() if isinstance(member, Method)]
    assert len(declared_methods) > 20
    for method in declared_methods:
        declared = csi.DESCRIPTOR.services_by_name[method.service].methods_by_name[method.name]
        assert declared.input_type is method.request_type.DESCRIPTOR
        assert declared.output_type is method.response_type.DESCRIPTOR


@pytest.mark.real
def test_the_protocol_is_the_modules_own() -> None:
    """Messages, numbers, services and options are those of the protocol's Go module."""
    binaries = find(CSI)
    if binaries is None:
        pytest.fail("csi-sanity is not built; `make e2e` or `python -m tools.csi build` does.")
    done = subprocess.run([binaries.path("csi-descriptors")], capture_output=True, check=True)
    theirs = FileDescriptorProto.FromString(done.stdout)
    ours = FileDescriptorProto()
    csi.DESCRIPTOR.CopyToProto(ours)
    assert facts(ours) == facts(theirs)
    assert len(facts(theirs)["messageType"]) == len(csi.DESCRIPTOR.message_types_by_name) > 80


def facts(file: FileDescriptorProto) -> dict[str, Any]:
    """What matters on the wire: everything but the file's name and Go's package.

    A compiler may add the names that JSON derives, and empty blocks of options.
    """
    for part in ("name", "options", "source_code_info"):
        file.ClearField(part)
    described: dict[str, Any] = plain(MessageToDict(file))
    for kind in ("messageType", "enumType", "service", "extension"):
        described[kind] = sorted(described[kind], key=lambda item: str(item["name"]))
    return described


def plain(value: Any) -> Any:
    """The same without derived names and empty options."""
    if isinstance(value, dict):
        return {
            key: plain(item)
            for key, item in value.items()
            if key != "jsonName" and (key, item) != ("options", {})
        }
    return [plain(item) for item in value] if isinstance(value, list) else value
