"""Sends the recorded requests of a real API server to another one and compares the answers.

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


class Answer(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: Any


# ------------------------------------------------------------------------------ pointers and values


def parse_pointer(pointer: str) -> list[str]:
    """The steps of a JSON pointer; ``[key=value]``, an item of a list, is one step."""
    return [part.replace("~1", "/").replace("~0", "~") for part in _PART.findall(pointer)]


def value_at(value: Any, way: list[str]) -> Any:
    """The value at a pointer, or None."""
    for at, part in enumerate(way):
        if part == "*":
            return [value_at(item, way[at + 1 :]) for item in value or ()]
        value = _child(value, part)
    return value


def _child(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if not isinstance(value, list):
        return None
    if part.startswith("["):
        key, _, expected = part[1:-1].partition("=")
        return next(
            (item for item in value if str(value_at(item, key.split("."))) == expected), None
        )
    return value[int(part)] if part.isdigit() and int(part) < len(value) else None


def remove_at(value: Any, way: list[str]) -> None:
    """Remove the value at a pointer."""
    if way[0] == "*":
        for item in value or ():
            remove_at(item, way[1:])
    elif len(way) > 1:
        remove_at(_child(value, way[0]), way[1:])
    elif isinstance(value, dict):
        value.pop(way[0], None)


def set_at(value: Any, way: list[str], new: Any) -> None:
    """Set the value at a pointer; objects on the way are created."""
    for part in way[:-1]:
        below = _child(value, part)
        if below is None:
            below = value[part] = {}
        value = below
    if isinstance(value, list):
        value[int(way[-1])] = new
    else:
        value[way[-1]] = new


def normalize(value: Any) -> Any:
    """A value without empty parts, with a word in place of each time."""
    if isinstance(value, list):
        return [normalize(item) for item in value]
    if not isinstance(value, dict):
        return value
    fields = {
        key: "<time>"
        if MOMENTS.fullmatch(key) and isinstance(content, str)
        else owned(content)
        if key == "fieldsV1"
        else normalize(content)
        for key, content in value.items()
    }
    return {key: content for key, content in fields.items() if content not in (None, {}, [])}


def owned(fields: Any, at: str = "") -> list[str]:
    """The paths that a set of managed fields names."""
    below = {key: children for key, children in fields.items() if key != "."}
    paths = [at] if at and ("." in fields or not fields) else []
    for key, children in below.items():
        paths += owned(children, f"{at}/{key}".lstrip("/"))
    return sorted(paths)


def resolve(value: Any, known: Mapping[str, Any]) -> Any:
    """A part of a request with its references resolved."""
    if isinstance(value, list):
        return [resolve(item, known) for item in value]
    if isinstance(value, dict):
        if "$edit" in value:
            edited = copy.deepcopy(known[value["$edit"]])
            for pointer, new in value.get("set", {}).items():
                set_at(edited, parse_pointer(pointer), resolve(new, known))
            for pointer in value.get("remove", ()):
                remove_at(edited, parse_pointer(pointer))
            return edited
        return {key: resolve(content, known) for key, content in value.items()}
    if not isinstance(value, str):
        return value
    return _REFERENCE.sub(lambda m: _reference(known[m[1]], m[2]), value)


def _reference(value: Any, more: str | None) -> str:
    return str(int(value) + int(more)) if more else str(value)


# ---------------------------------------------------------------------------------------- comparing


def disagreements(step: Step, answer: Answer, known: Mapping[str, Any]) -> Iterator[str]:
    """The differences between an answer and the recorded one."""
    judge, expect = step["judge"], step["expect"]
    expected = expect["status"]
    if answer.status != expected and not (isinstance(expected, list) and answer.status in expected):
        yield f"status {answer.status}, not {expected}: {str(answer.body)[:300]}"
        return
    body = answer.body if isinstance(answer.body, dict) else {}
    details = body.get("details") or {}
    causes = {
        (cause.get("reason") or "", cause.get("field") or "") for cause in details.get("causes", ())
    }
    error = {
        "code": body.get("code"),
        "reason": body.get("reason"),
        "causes": sorted(list(cause) for cause in causes if cause[1] != "<nil>"),
        **{key: details.get(key) for key in ("kind", "group", "name")},
    }
    for key, value in expect.get("error", {}).items():
        yield from _compare(f"error's {key}", value, error[key])
    for phrase, there in expect.get("phrases", {}).items():
        yield from _compare(f"phrase {phrase!r}", there, phrase in (body.get("message") or ""))
    for pointer, value in expect.get("fields", {}).items():
        yield from _compare(pointer, value, _field(body, pointer))
    if "whole" in expect:
        whole = copy.deepcopy(body)
        for pointer in (*(f"/metadata/{key}" for key in OWN), *judge["whole"]):
            remove_at(whole, parse_pointer(pointer))
        yield from _compare("the object", expect["whole"], normalize(whole))
    if "items" in expect:
        names = [value_at(item, ["metadata", "name"]) for item in body.get("items") or ()]
        order = sorted(names) if judge["items"] == "sorted" else names
        yield from _compare("items", expect["items"], order)
    for relation in judge.get("relations", ()):
        text = " ".join(word if isinstance(word, str) else json.dumps(word) for word in relation)
        yield from _compare(
            text, expect["relations"][text], _relation_holds(relation, answer, known)
        )


def _field(body: Any, pointer: str) -> Any:
    value = value_at(body, parse_pointer(pointer))
    if pointer.endswith("/fieldsV1") and value is not None:
        return owned(value)
    value = normalize(value)
    if pointer.endswith("/verbs") and isinstance(value, list):
        return sorted(value)
    return None if value in ({}, []) else value


def _compare(what: str, want: Any, have: Any) -> Iterator[str]:
    if want != have:
        yield f"{what}: real {want!r}, here {have!r}"


def _relation_holds(relation: list[Any], answer: Answer, known: Mapping[str, Any]) -> bool:
    match relation:
        case ["header-has", name, text]:
            return text in answer.headers.get(name, "")
        case ["set", pointer]:
            return value_at(answer.body, parse_pointer(pointer)) not in NOTHING
        case ["absent", pointer]:
            return value_at(answer.body, parse_pointer(pointer)) in NOTHING
        case ["matches", pointer, pattern]:
            return bool(re.search(pattern, str(value_at(answer.body, parse_pointer(pointer)))))
        case ["has", pointer, members]:
            return set(members) <= set(value_at(answer.body, parse_pointer(pointer)) or ())
        case ["same", pointer, name]:
            return bool(value_at(answer.body, parse_pointer(pointer)) == known[name])
        case ["newer", pointer, name]:
            return int(value_at(answer.body, parse_pointer(pointer))) > int(known[name])
    raise ValueError(f"no such relation: {relation}")


def watch_disagreements(
    step: Step, events: list[dict[str, Any]], known: Mapping[str, Any]
) -> Iterator[str]:
    """The differences between the events of a watch and the recorded ones."""
    judge, expect = step["judge"], step["expect"]
    bookmarks = [event["object"] for event in events if event["type"] == "BOOKMARK"]
    changes = [event for event in events if event["type"] != "BOOKMARK"]
    seen = [
        [event["type"], value_at(event["object"], ["metadata", "name"])]
        + [
            normalize(value_at(event["object"], parse_pointer(pointer)))
            for pointer in judge.get("fields", ())
        ]
        for event in changes
    ]
    yield from _compare("events", expect["events"], seen)
    versions = [
        int(value_at(event["object"], ["metadata", "resourceVersion"])) for event in changes
    ]
    rising = all(a < b for a, b in pairwise(versions))
    yield from _compare("rising versions", expect["increasing"], rising)
    if "after" in expect:
        later = all(version > int(known[judge["after"]]) for version in versions)
        yield from _compare("later versions", expect["after"], later)
    if judge.get("unmarked"):
        yield from _compare("bookmarks", expect["bookmarks"], len(bookmarks))


# ------------------------------------------------------------------------------------------ sending


class Replay:
    """One scenario on one server."""

    def __init__(self, kubeconfig: Path) -> None:
        self._transport = HttpsTransport(load_config(kubeconfig))
        self._captured: dict[str, Any] = {}
        self._watches: dict[str, Response] = {}

    async def close(self) -> None:
        """End the watches and the connections."""
        for watch in self._watches.values():
            await watch.close()
        await self._transport.close()

    async def run(self, step: Step) -> list[str]:
        """Send one step; gives the differences."""
        if "collect" in step:
            events = await self._collect(step)
            return list(watch_disagreements(step, events, self._captured))
        answer = await self._ask_until(step)
        errors = [] if step.get("setup") else list(disagreements(step, answer, self._captured))
        for name, pointer in step.get("capture", {}).items():
            self._captured[name] = value_at(answer.body, parse_pointer(pointer))
        return errors

    async def _ask_until(self, step: Step) -> Answer:
        until = step.get("until")
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            answer = await self._ask(step)
            if until is None or loop.time() > end or _is_reached(until, answer):
                return answer
            await asyncio.sleep(0.02)

    async def _ask(self, step: Step) -> Answer:
        request = step["request"]
        body = resolve(request.get("body"), self._captured)
        if body is not None:
            body = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        path, _, inline = resolve(request["path"], self._captured).partition("?")
        query = dict(option.split("=", 1) for option in inline.split("&") if option)
        headers = dict(request.get("headers", {}))
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        response = await self._transport.send(
            Request(
                method=request["method"],
                path=path,
                query=query | resolve(request.get("query", {}), self._captured),
                headers=headers,
                body=body,
                stream="open" in step,
            )
        )
        if "open" in step:
            self._watches[step["open"]] = response
            return Answer(response.status, response.headers, None)
        try:
            content = await response.read()
        finally:
            await response.close()
        with suppress(ValueError):
            return Answer(response.status, response.headers, json.loads(content))
        return Answer(response.status, response.headers, content.decode("utf-8", "replace"))

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
                            if _is_enough(until, events):
                                return events
        finally:
            await watch.close()
        return events


def _is_reached(until: Mapping[str, Any], answer: Answer) -> bool:
    return answer.status == until.get("status", answer.status) and all(
        normalize(value_at(answer.body, parse_pointer(pointer))) == value
        for pointer, value in until.get("fields", {}).items()
    )


def _is_enough(until: Mapping[str, Any], events: list[dict[str, Any]]) -> bool:
    name = value_at(events[-1], ["object", "metadata", "name"])
    return len(events) == until.get("count") or ("name" in until and name == until["name"])
