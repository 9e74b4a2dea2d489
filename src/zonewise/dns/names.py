"""Domain names as they are on the wire, and their labels as text.

A name is bytes in wire form without compression: ``b"\\x03web\\x04shop\\x00"``. Lengths are below
64, so ``bytes.lower`` changes letters only and two names are equal when their lowered bytes are.
Text is for comparing with objects of the API and for people. Bytes outside of ASCII become the
characters of the same numbers, which no name of an object has; a dot inside a label is written
``\\.``, so it never looks like two labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zonewise.api.errors import ParseError

ROOT = b"\0"
LABEL_LIMIT = 63
NAME_LIMIT = 255


def labels_of(name: bytes) -> tuple[str, ...]:
    """The labels of a name, as text."""
    labels = []
    at = 0
    while length := name[at]:
        label = name[at + 1 : at + 1 + length].decode("latin-1")
        labels.append(label.replace(".", "\\.") if "." in label else label)
        at += 1 + length
    return tuple(labels)


def name_of(labels: Sequence[str]) -> bytes:
    """The name with these labels; a ``ParseError`` if there is no such name."""
    wire = bytearray()
    for label in labels:
        piece = label.encode("latin-1", "replace")
        if not 0 < len(piece) <= LABEL_LIMIT:
            raise ParseError(f"{label[:70]!r} is not a domain label: it has 1 to 63 bytes")
        wire.append(len(piece))
        wire += piece
    wire.append(0)
    if len(wire) > NAME_LIMIT:
        raise ParseError(f"a domain name has at most {NAME_LIMIT} bytes, this has {len(wire)}")
    return bytes(wire)


def parse_domain(text: str) -> bytes:
    """The name that a person writes, with or without a dot at the end."""
    bare = text.strip().removesuffix(".")
    if not bare:
        if text.strip() == ".":
            return ROOT
        raise ParseError("a domain name is empty; write for example cluster.local")
    return name_of(bare.split("."))


def domain_text(name: bytes) -> str:
    """A name for people, with a dot at the end."""
    return ".".join(labels_of(name)) + "."


def suffixes(name: bytes) -> Iterator[bytes]:
    """A name and all names above it, without the root."""
    at = 0
    while length := name[at]:
        yield name[at:]
        at += 1 + length


def is_within(name: bytes, domain: bytes) -> bool:
    """Whether a name is the domain or below it; both in lower case."""
    return name.endswith(domain) and (domain == ROOT or domain in suffixes(name))
