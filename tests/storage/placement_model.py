"""A second implementation of placement: on plain dictionaries, rule by rule, sharing no code.

A case is JSON: ``labels`` (name to the node's label, in order), ``driver``, ``pools`` (``name``,
``segments``, ``capacity``, ``promised``, ``health`` as "n/d", ``alive``), ``bytes``, ``requisite``
and ``preferred`` (or null for no requirement), ``policy``, ``default`` (a pool or null), ``source``
(``pool``, ``segments``, or null), ``cross``. The answer is ``pools`` (those that may be chosen:
several only where a tie is drawn), ``topology``, ``code``, ``copied``, ``crosses``.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

Case = dict[str, Any]
Answer = dict[str, Any]


def answer(case: Case) -> Answer:
    """The answer to a case by the rules."""
    everywhere = case["pools"]
    policy = case["policy"]
    terms = None
    if policy == "default-pool":
        everywhere = [case["default"]] if case["default"] else []
    elif policy != "balanced":
        terms = wanted_terms(case)
    first: list[dict[str, str]] = []
    if terms is not None:
        # A domain that the class does not know: where the pod will be, or all of them.
        first = preferred_terms(case)[:1]
        inside = [pool for pool in everywhere if any(in_term(pool, term) for term in terms)]
        there = [pool for pool in inside if any(in_term(pool, term) for term in first)]
        if not inside and policy == "preferred":
            return refused()
        if policy != "preferred" and (not inside or (first and not there)):
            terms, first = None, []
            everywhere = inside or everywhere
    source = case["source"]
    if source is None:
        return search(case, everywhere, terms)
    same = [
        pool
        for pool in everywhere
        if source["pool"] == pool["name"] or source["segments"] == pool["segments"]
    ]
    if case["cross"] == "copy" and first:
        choice = search(case, everywhere, first)
        if not choice["code"]:
            if source["pool"] in choice["all_with_room"]:
                home = [pool for pool in everywhere if pool["name"] == source["pool"]]
                choice = search(case, home, first)
            choice["copied"] = source["pool"] not in choice["pools"]
            names = {pool["name"] for pool in same}
            choice["crosses"] = not names & {*choice["pools"]}
            return choice
    choice = search(case, same, terms)
    if not choice["code"]:
        if source["pool"] in choice["all_with_room"]:
            choice["pools"] = [source["pool"]]
        choice["copied"] = source["pool"] not in choice["pools"]
        return choice
    if case["cross"] == "copy":
        choice = search(case, [pool for pool in everywhere if pool not in same], terms)
        if not choice["code"]:
            choice["copied"] = choice["crosses"] = True
    return choice


def wanted_terms(case: Case) -> list[dict[str, str]] | None:
    """The terms in the order they are tried; None if nothing is required."""
    if case["requisite"] is None or not case["labels"]:
        return None
    if case["requisite"] == [] and case["preferred"] == []:
        return None
    requisite = [term for raw in case["requisite"] if (term := known_keys(case, raw))]
    return preferred_terms(case) + requisite


def preferred_terms(case: Case) -> list[dict[str, str]]:
    """The preferred terms that count, as the caller gave them."""
    requisite = [term for raw in case["requisite"] if (term := known_keys(case, raw))]
    preferred = [term for raw in case["preferred"] if (term := known_keys(case, raw))]
    if requisite:
        preferred = [
            term
            for term in preferred
            if any(all(term.get(k) == v for k, v in required.items()) for required in requisite)
        ]
    return preferred


def known_keys(case: Case, raw: dict[str, str]) -> dict[str, str]:
    """The keys with the driver's prefix, or that are the node's own labels."""
    term = {}
    for name, label in case["labels"].items():
        if label in raw:
            term[name] = raw[label]
        if f"topology.{case['driver']}/{name}" in raw:
            term[name] = raw[f"topology.{case['driver']}/{name}"]
    return term


def in_term(pool: dict[str, Any], term: dict[str, str]) -> bool:
    """All of the pool's segments are in the term."""
    return all(term.get(name) == value for name, value in pool["segments"].items())


def search(case: Case, pools: list[dict[str, Any]], terms: list[dict[str, str]] | None) -> Answer:
    """The first term with a living pool that has room; without terms the best of all."""
    good = [
        pool
        for pool in pools
        if pool["alive"]
        and Fraction(pool["health"]) > 0
        and pool["capacity"] - pool["promised"] >= case["bytes"]
    ]
    if terms is None:
        if not good:
            return refused()
        top = max(weight(pool) for pool in good)
        return taken([pool for pool in good if weight(pool) == top], good, [])
    for term in terms:
        here = [pool for pool in good if in_term(pool, term)]
        if here:
            most = max(len(pool["segments"]) for pool in here)
            close = [pool for pool in here if len(pool["segments"]) == most]
            room = max(pool["capacity"] - pool["promised"] for pool in close)
            best = [pool for pool in close if pool["capacity"] - pool["promised"] == room]
            prefix = f"topology.{case['driver']}/"
            own = best[0]["segments"]
            topology = [{prefix + name: value for name, value in own.items()}] if own else []
            return taken(best, here, topology)
    return refused()


def weight(pool: dict[str, Any]) -> Fraction:
    """(capacity - promised bytes) x health."""
    free: int = pool["capacity"] - pool["promised"]
    return free * Fraction(pool["health"])


def taken(best: list[dict[str, Any]], room: list[dict[str, Any]], topology: list[Any]) -> Answer:
    """The answer that one of these pools is chosen."""
    return {
        "pools": sorted(pool["name"] for pool in best),
        "all_with_room": sorted(pool["name"] for pool in room),
        "topology": topology,
        "code": "",
        "copied": False,
        "crosses": False,
    }


def refused() -> Answer:
    """The answer that no pool can be used."""
    return {
        "pools": [],
        "all_with_room": [],
        "topology": [],
        "code": "RESOURCE_EXHAUSTED",
        "copied": False,
        "crosses": False,
    }


LABELS = {"region": "example.com/region", "zone": "example.com/zone", "rack": "example.com/rack"}
DRIVER = "csi.example.com"


def drawn_case(seed: int) -> Case:
    """A random case, the same for the same seed."""
    rng = random.Random(seed)
    names = rng.choice([["zone"], ["region", "zone"], ["region", "zone", "rack"], ["zone"], []])
    labels = {name: LABELS[name] for name in names}
    pools = [drawn_pool(rng, f"p{number}", names) for number in range(rng.randint(0, 8))]
    required = names and rng.random() < 0.85
    requisite = [drawn_term(rng, names, pools) for _ in range(rng.randint(0, 4))]
    preferred = rng.sample(requisite, rng.randint(0, len(requisite)))
    if rng.random() < 0.3:
        preferred.insert(rng.randint(0, len(preferred)), drawn_term(rng, names, pools))
    if rng.random() < 0.2:
        requisite = []
    source = rng.choice([None, None, *pools])
    return {
        "labels": labels,
        "driver": DRIVER,
        "pools": pools,
        "bytes": rng.choice([0, 1, 10, 30, 60]),
        "requisite": requisite if required else None,
        "preferred": preferred if required else None,
        "policy": rng.choice(["", "", "", "preferred", "balanced", "default-pool"]),
        "default": rng.choice([None, drawn_pool(rng, "default", names), *pools]),
        "source": source and {"pool": source["name"], "segments": source["segments"]},
        "cross": rng.choice(["same-domain", "copy"]),
    }


def drawn_pool(rng: random.Random, name: str, names: list[str]) -> dict[str, Any]:
    """A pool in a random domain, with random free bytes and health."""
    count = rng.choice([0, *range(1, len(names) + 1), len(names)])
    declared = sorted(rng.sample(names, count), key=names.index)
    return {
        "name": name,
        "segments": {key: drawn_value(rng, key) for key in declared},
        "capacity": rng.choice([10, 50, 100, 100]),
        "promised": rng.choice([0, 0, 0, 10, 45, 120]),
        "health": rng.choice(["1", "1", "1/2", "9/10", "0"]),
        "alive": rng.random() < 0.9,
    }


def drawn_term(rng: random.Random, names: list[str], pools: list[dict[str, Any]]) -> dict[str, str]:
    """A random term: the driver's keys or the node's, some missing, at times the key of another.

    Most are of nodes near a pool: its segments, and values of the other labels.
    """
    near = rng.choice(pools)["segments"] if pools and rng.random() < 0.7 else {}
    term = {}
    for name in names:
        if name in near or rng.random() < 0.9:
            key = rng.choice([f"topology.{DRIVER}/{name}", LABELS[name]])
            term[key] = near.get(name) or drawn_value(rng, name)
    if rng.random() < 0.3:
        term["kubernetes.io/hostname"] = "node-1"
    return term


def drawn_value(rng: random.Random, name: str) -> str:
    """One of few values of a label, so that pools and terms often have the same."""
    return f"{name[0]}{rng.randint(1, 2 if name == 'region' else 3)}"
