"""Replaying what a real API server was asked, and judging whether another agrees with it.

A step has a request, what of the answer counts (``judge``) and that part of the real answer
(``expect``). Steps of one scenario run in order and may refer to what earlier ones captured, as in
``${rv}``. Names are fixed, so a fresh server is needed. Verdicts are made from the expectation:
each thing that was recorded is looked up in the answer at hand.

What differs between any two clusters does not count: times, uids, versions, owners, and whether a
field is empty or absent.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from zonewise.runtime.client.transport import HttpsTransport, Request, Response
from zonewise.runtime.config.cluster import load_config

Step = dict[str, Any]

PATIENCE = 20.0
NOTHING: tuple[Any, ...] = (None, "", {}, [])
OWN = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")
MOMENTS = re.compile(
    r"deletionTimestamp|last(Transition|Update|Probe|Heartbeat|PhaseTransition)Time"
)
_PART = re.compile(r"/(\[[^\]]*\]|[^/]*)")
_REFERENCE = re.compile(r"\$\{(\w+)([+-]\d+)?\}")


class Said(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: Any


# ------------------------------------------------------------------------------ pointers and values


def parts(pointer: str) -> list[str]:
    """The names on a pointer's way; ``[key=value]`` is one of them."""
    return [one.replace("~1", "/").replace("~0", "~") for one in _PART.findall(pointer)]


def look(value: Any, way: list[str]) -> Any:
    """What is at a pointer, None if nothing is."""
    for at, part in enumerate(way):
        if part == "*":
            return [look(one, way[at + 1 :]) for one in value or ()]
        value = _step(value, part)
    return value


def _step(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if not isinstance(value, list):
        return None
    if part.startswith("["):
        key, _, wanted = part[1:-1].partition("=")
        return next((one for one in value if str(look(one, key.split("."))) == wanted), None)
    return value[int(part)] if part.isdigit() and int(part) < len(value) else None


def remove(value: Any, way: list[str]) -> None:
    """Take away what is at a pointer."""
    if way[0] == "*":
        for one in value or ():
            remove(one, way[1:])
    elif len(way) > 1:
        remove(_step(value, way[0]), way[1:])
    elif isinstance(value, dict):
        value.pop(way[0], None)


def put(value: Any, way: list[str], new: Any) -> None:
    """Set what is at a pointer, making objects on the way."""
    for part in way[:-1]:
        below = _step(value, part)
        if below is None:
            below = value[part] = {}
        value = below
    if isinstance(value, list):
        value[int(way[-1])] = new
    else:
        value[way[-1]] = new


def plain(value: Any) -> Any:
    """A value without what is empty; moments are just there."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    shown = {
        key: "<time>"
        if MOMENTS.fullmatch(key) and isinstance(one, str)
        else owned(one)
        if key == "fieldsV1"
        else plain(one)
        for key, one in value.items()
    }
    return {key: one for key, one in shown.items() if one not in (None, {}, [])}


def owned(fields: Any, at: str = "") -> list[str]:
    """The paths that a set of managed fields names."""
    below = {key: one for key, one in fields.items() if key != "."}
    found = [at] if at and ("." in fields or not fields) else []
    for key, one in below.items():
        found += owned(one, f"{at}/{key}".lstrip("/"))
    return sorted(found)


def filled(value: Any, known: Mapping[str, Any]) -> Any:
    """A part of a request with its references resolved."""
    if isinstance(value, list):
        return [filled(one, known) for one in value]
    if isinstance(value, dict):
        if "$edit" in value:
            edited = copy.deepcopy(known[value["$edit"]])
            for pointer, new in value.get("set", {}).items():
                put(edited, parts(pointer), filled(new, known))
            for pointer in value.get("remove", ()):
                remove(edited, parts(pointer))
            return edited
        return {key: filled(one, known) for key, one in value.items()}
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda m: _referred(known[m[1]], m[2]), value)


def _referred(value: Any, more: str | None) -> str:
    return str(int(value) + int(more)) if more else str(value)


# ------------------------------------------------------------------------------------------ judging


def disagreements(step: Step, said: Said, known: Mapping[str, Any]) -> Iterator[str]:
    """Where an answer is not what the real one was."""
    judge, expect = step["judge"], step["expect"]
    wanted = expect["status"]
    if said.status != wanted and not (isinstance(wanted, list) and said.status in wanted):
        yield f"status {said.status}, not {wanted}: {str(said.body)[:300]}"
        return
    body = said.body if isinstance(said.body, dict) else {}
    details = body.get("details") or {}
    causes = {
        (one.get("reason") or "", one.get("field") or "") for one in details.get("causes", ())
    }
    error = {
        "code": body.get("code"),
        "reason": body.get("reason"),
        "causes": sorted(list(one) for one in causes if one[1] != "<nil>"),
        **{key: details.get(key) for key in ("kind", "group", "name")},
    }
    for key, value in expect.get("error", {}).items():
        yield from _differ(f"error's {key}", value, error[key])
    for phrase, there in expect.get("phrases", {}).items():
        yield from _differ(f"phrase {phrase!r}", there, phrase in (body.get("message") or ""))
    for pointer, value in expect.get("fields", {}).items():
        yield from _differ(pointer, value, _field(body, pointer))
    if "whole" in expect:
        whole = copy.deepcopy(body)
        for pointer in (*(f"/metadata/{key}" for key in OWN), *judge["whole"]):
            remove(whole, parts(pointer))
        yield from _differ("the object", expect["whole"], plain(whole))
    if "items" in expect:
        names = [look(one, ["metadata", "name"]) for one in body.get("items") or ()]
        order = sorted(names) if judge["items"] == "sorted" else names
        yield from _differ("items", expect["items"], order)
    for wish in judge.get("relations", ()):
        text = " ".join(one if isinstance(one, str) else json.dumps(one) for one in wish)
        yield from _differ(text, expect["relations"][text], _holds(wish, said, known))


def _field(body: Any, pointer: str) -> Any:
    value = look(body, parts(pointer))
    if pointer.endswith("/fieldsV1") and value is not None:
        return owned(value)
    value = plain(value)
    if pointer.endswith("/verbs") and isinstance(value, list):
        return sorted(value)
    return None if value in ({}, []) else value


def _differ(what: str, want: Any, have: Any) -> Iterator[str]:
    if want != have:
        yield f"{what}: real {want!r}, here {have!r}"


def _holds(wish: list[Any], said: Said, known: Mapping[str, Any]) -> bool:
    match wish:
        case ["header-has", name, text]:
            return text in said.headers.get(name, "")
        case ["set", pointer]:
            return look(said.body, parts(pointer)) not in NOTHING
        case ["absent", pointer]:
            return look(said.body, parts(pointer)) in NOTHING
        case ["matches", pointer, pattern]:
            return bool(re.search(pattern, str(look(said.body, parts(pointer)))))
        case ["has", pointer, members]:
            return set(members) <= set(look(said.body, parts(pointer)) or ())
        case ["same", pointer, name]:
            return bool(look(said.body, parts(pointer)) == known[name])
        case ["newer", pointer, name]:
            return int(look(said.body, parts(pointer))) > int(known[name])
    raise ValueError(f"no such relation: {wish}")


def watch_disagreements(
    step: Step, events: list[dict[str, Any]], known: Mapping[str, Any]
) -> Iterator[str]:
    """Where the events of a watch are not those a real one sent."""
    judge, expect = step["judge"], step["expect"]
    marks = [one["object"] for one in events if one["type"] == "BOOKMARK"]
    told = [one for one in events if one["type"] != "BOOKMARK"]
    seen = [
        [one["type"], look(one["object"], ["metadata", "name"])]
        + [plain(look(one["object"], parts(pointer))) for pointer in judge.get("fields", ())]
        for one in told
    ]
    yield from _differ("events", expect["events"], seen)
    versions = [int(look(one["object"], ["metadata", "resourceVersion"])) for one in told]
    rising = all(a < b for a, b in pairwise(versions))
    yield from _differ("rising versions", expect["increasing"], rising)
    if "after" in expect:
        later = all(one > int(known[judge["after"]]) for one in versions)
        yield from _differ("later versions", expect["after"], later)
    if judge.get("unmarked"):
        yield from _differ("bookmarks", expect["bookmarks"], len(marks))


# ------------------------------------------------------------------------------------------- asking


class Replay:
    """One scenario on one server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._transport = HttpsTransport(load_config(kubeconfig))
        self._known: dict[str, Any] = {}
        self._watches: dict[str, Response] = {}

    async def close(self) -> None:
        """End the watches and the connections."""
        for watch in self._watches.values():
            await watch.close()
        await self._transport.close()

    async def run(self, step: Step) -> list[str]:
        """Ask one step; where it disagrees."""
        if "collect" in step:
            events = await self._collect(step)
            return list(watch_disagreements(step, events, self._known))
        said = await self._patiently(step)
        found = [] if step.get("setup") else list(disagreements(step, said, self._known))
        for name, pointer in step.get("capture", {}).items():
            self._known[name] = look(said.body, parts(pointer))
        return found

    async def _patiently(self, step: Step) -> Said:
        until = step.get("until")
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            said = await self._ask(step)
            if until is None or loop.time() > end or _reached(until, said):
                return said
            await asyncio.sleep(0.02)

    async def _ask(self, step: Step) -> Said:
        asked = step["request"]
        body = filled(asked.get("body"), self._known)
        if body is not None:
            body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        path, _, inline = filled(asked["path"], self._known).partition("?")
        query = dict(one.split("=", 1) for one in inline.split("&") if one)
        headers = dict(asked.get("headers", {}))
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        response = await self._transport.send(
            Request(
                method=asked["method"],
                path=path,
                query=query | filled(asked.get("query", {}), self._known),
                headers=headers,
                body=body,
                stream="open" in step,
            )
        )
        if "open" in step:
            self._watches[step["open"]] = response
            return Said(response.status, response.headers, None)
        try:
            content = await response.read()
        finally:
            await response.close()
        with suppress(ValueError):
            return Said(response.status, response.headers, json.loads(content))
        return Said(response.status, response.headers, content.decode("utf-8", "replace"))

    async def _collect(self, step: Step) -> list[dict[str, Any]]:
        until, events, rest = step["until"], list[dict[str, Any]](), b""
        watch = self._watches.pop(step["collect"])
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    async for chunk in watch.chunks():
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            events.append(json.loads(line))
                            if _enough(until, events):
                                return events
        finally:
            await watch.close()
        return events


def _reached(until: Mapping[str, Any], said: Said) -> bool:
    return said.status == until.get("status", said.status) and all(
        plain(look(said.body, parts(pointer))) == value
        for pointer, value in until.get("fields", {}).items()
    )


def _enough(until: Mapping[str, Any], events: list[dict[str, Any]]) -> bool:
    name = look(events[-1], ["object", "metadata", "name"])
    return len(events) == until.get("count") or ("name" in until and name == until["name"])
