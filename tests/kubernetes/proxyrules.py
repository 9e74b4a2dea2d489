"""What kube-proxy's nftables rules do with a packet: the text of ``nft list table``, read."""

from __future__ import annotations

import re
from typing import NamedTuple

End = tuple[str, int]
Way = tuple[str | None, str, int]
"""Address (None: a node port), protocol and port."""

_BLOCK = re.compile(r"^\t(chain|map|set) (\S+) \{\n(.*?)^\t\}", re.M | re.S)
_ELEMENTS = re.compile(r"elements = \{(.*?)\}", re.S)
_MAPPED = re.compile(r"(?:map|vmap) \{ (.*?) \}")
_TIMEOUT = re.compile(r"timeout (\S+)")
_SPAN = re.compile(r"(\d+)([dhms])")
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


class Fate(NamedTuple):
    """The action on a packet, and the endpoints it may go to."""

    action: str
    ends: tuple[End, ...] = ()


class Rules:
    """The table of one family."""

    def __init__(self, text: str) -> None:
        self._chains: dict[str, list[str]] = {}
        self._timeouts: dict[str, int] = {}
        self._elements: dict[str, list[str]] = {}
        for kind, name, body in _BLOCK.findall(text):
            if kind == "chain":
                self._chains[name] = [line.strip() for line in body.splitlines()]
                continue
            elements = _ELEMENTS.search(body)
            self._elements[name] = re.split(r",\s*", elements[1].strip()) if elements else []
            if timeout := _TIMEOUT.search(body):
                self._timeouts[name] = _seconds(timeout[1])
        self._services = self._verdicts("service-ips") | self._verdicts("service-nodeports")
        self._lost = self._verdicts("no-endpoint-services")
        self._lost |= self._verdicts("no-endpoint-nodeports")
        self._walls = self._verdicts("firewall-ips")

    @property
    def complete(self) -> bool:
        """Whether the first write, which holds everything, has happened."""
        return bool(self._elements.get("cluster-ips"))

    @property
    def ways(self) -> set[Way]:
        """Every way into a Service in the table."""
        return {*self._services, *self._lost}

    def fate(self, way: Way, source: str) -> Fate | None:
        """What the rules do with a packet that takes a way in; None if no rule matches it."""
        verdict = self._services.get(way)
        if verdict is None:
            return self._refused(way)
        chain = verdict.removeprefix("goto ")
        if not chain.startswith("external-"):
            return Fate("dnat", self._ends(chain))
        onward = [line for line in self._chains[chain] if "goto " in line]
        if source == "inside":
            onward = [line for line in onward if line.startswith("fib saddr type local")]
        else:
            onward = [line for line in onward if line.startswith("goto ")]
        if not onward:
            return self._refused(way)
        return Fate("dnat", self._ends(onward[0].partition("goto ")[2].split()[0]))

    def sources(self, way: Way) -> tuple[str, ...]:
        """The sources that may take a way in; empty if all may."""
        verdict = self._walls.get(way)
        if verdict is None:
            return ()
        (line,) = self._chains[verdict.removeprefix("goto ")]
        match = re.search(r"saddr != (?:\{ (.*?) \}|(\S+)) drop", line)
        assert match is not None, line
        return tuple(sorted((match[1] or match[2]).split(", ")))

    def affinity(self, way: Way) -> set[int]:
        """For how many seconds clients keep their endpoints."""
        text = "".join(self._chains.get(self._services.get(way, "").removeprefix("goto "), ()))
        return {self._timeouts[name] for name in re.findall(r"@(affinity-\S+)", text)}

    def _refused(self, way: Way) -> Fate | None:
        verdict = self._lost.get(way)
        if verdict is None:
            return None
        return Fate("drop" if verdict == "drop" else "reject")

    def _ends(self, chain: str) -> tuple[End, ...]:
        ends: list[End] = []
        for line in self._chains[chain]:
            mapped = _MAPPED.search(line)
            if mapped is None:
                continue
            for element in mapped[1].split(", "):
                value = element.split(" : ", 1)[1]
                if value.startswith("goto "):
                    ends.append(self._target(value.removeprefix("goto ")))
                else:
                    address, port = value.split(" . ")
                    ends.append((address, int(port)))
        return tuple(sorted(ends))

    def _target(self, chain: str) -> End:
        (line,) = [line for line in self._chains[chain] if " dnat to " in line]
        address, _, port = line.partition(" dnat to ")[2].rpartition(":")
        return address.strip("[]"), int(port)

    def _verdicts(self, name: str) -> dict[Way, str]:
        verdicts: dict[Way, str] = {}
        for element in self._elements.get(name, ()):
            key, verdict = element.split(" : ", 1)
            parts = re.sub(r' comment ".*"', "", key).split(" . ")
            address = parts[0] if len(parts) == 3 else None
            verdicts[address, parts[-2].upper(), int(parts[-1])] = verdict.strip()
        return verdicts


def _seconds(text: str) -> int:
    return sum(int(number) * _UNITS[unit] for number, unit in _SPAN.findall(text))
