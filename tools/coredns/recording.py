"""What CoreDNS answers to a list of questions about a cluster, as data.

The cluster is an embedded API server with nothing but the objects; CoreDNS reads it as any other.
Recorded is what two servers must have in common: code, AA, and the records of each section as
sorted texts, without the serial of a SOA record.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype

from tools.coredns.binary import VERSION
from tools.coredns.questions import EXTERNAL, Obj, objects, questions
from tools.coredns.running import running
from tools.coredns.upstream import serve
from zonewise.api import LeanEndpointSlice, Namespace, Node, Pod, Service
from zonewise.api.unstructured import unstructured
from zonewise.embedded.apiserver.server import DUAL_STACK, ApiServer, ServerSettings
from zonewise.runtime.client.client import Client

_RESOURCES = {
    cls.resource.kind: cls.resource for cls in (Namespace, Node, Service, LeanEndpointSlice, Pod)
}
SECTIONS = ("answer", "authority", "additional")


def plain(message: dns.message.Message) -> Obj:
    """An answer as data."""
    return {
        "rcode": dns.rcode.to_text(message.rcode()),
        "aa": bool(message.flags & dns.flags.AA),
        **{section: _texts(getattr(message, section)) for section in SECTIONS},
        "aliases": [
            f"{records.name} {records[0]}"
            for records in message.answer
            if records.rdtype == dns.rdatatype.CNAME
        ],
    }


def _texts(section: Any) -> list[str]:
    texts = []
    for records in section:
        kind = dns.rdatatype.to_text(records.rdtype)
        for record in records:
            text = str(record)
            if kind == "SOA":
                words = text.split()
                text = " ".join([*words[:2], "serial", *words[3:]])
            texts.append(f"{records.name} {records.ttl} {kind} {text}")
    return sorted(texts)


async def record() -> Obj:
    """Ask CoreDNS everything."""
    with tempfile.TemporaryDirectory(prefix="zonewise-recording-") as folder:
        server = ApiServer(
            Path(folder),
            settings=ServerSettings(service_networks=DUAL_STACK),
            clock=time.time,
            rng=random.SystemRandom(),
        )
        await server.start(0)
        outside, port = await serve(EXTERNAL)
        try:
            await plant(server.connect("recording"), objects())
            kubeconfig = server.identity.kubeconfig.resolve()
            more = f"    forward . 127.0.0.1:{port} {{\n        prefer_udp\n    }}"
            async with running(kubeconfig, more=more) as (answers_at, _):
                answers = [
                    {"name": name, "type": kind, **plain(await ask(name, kind, answers_at))}
                    for name, kind in questions()
                ]
        finally:
            outside.close()
            await server.close()
    return {"coredns": VERSION, "objects": objects(), "answers": answers}


async def ask(name: str, kind: str, port: int) -> dns.message.Message:
    """One question over TCP, so that the answer is complete."""
    query = dns.message.make_query(name, kind)
    return await dns.asyncquery.tcp(query, "127.0.0.1", timeout=10, port=port)


async def plant(client: Client, items: list[Obj]) -> None:
    """Create objects, and their status if they have one."""
    for item in items:
        meta = item["metadata"]
        space = meta.get("namespace", "")
        cls = unstructured(_RESOURCES[item["kind"]])
        body = {key: value for key, value in item.items() if key != "status"}
        await client.create(cls(body))
        if "status" in item:
            status = {"status": item["status"]}
            await client.patch(cls, meta["name"], space, status, subresource="status")


def write(path: Path, recording: Obj) -> None:
    """Write a recording: the same bytes for the same answers."""
    text = json.dumps(recording, indent=0, sort_keys=True).encode()
    path.write_bytes(gzip.compress(text, mtime=0))
