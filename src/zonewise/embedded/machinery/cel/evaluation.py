"""The closures that compiled expressions consist of, and the frame they run in.

Each function takes the closures of the parts of an expression and returns the closure of the whole.
Errors are part of control flow, as the language demands: a junction or a quantifier ignores an
error when another operand decides. Loops, lists and long strings spend budget; nothing else can
repeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from zonewise.embedded.machinery.cel.kinds import DYN, CelKind, is_of, name_of
from zonewise.embedded.machinery.cel.library import Overload
from zonewise.embedded.machinery.cel.lists import sort_by_keys
from zonewise.embedded.machinery.cel.values import EvaluationError, Optional

TEXT_COST = 64  # characters of text that cost as much as one step


class OutOfBudget(EvaluationError):
    """The expression exceeds its budget."""


class Frame:
    """One evaluation: variables by slot, and the remaining budget."""

    __slots__ = ("budget", "slots")

    def __init__(self, slots: dict[Any, Any], budget: int) -> None:
        self.slots = slots
        self.budget = budget

    def spend(self, steps: int) -> None:
        """Subtract the cost of some work; OutOfBudget if nothing remains."""
        self.budget -= steps
        if self.budget < 0:
            raise OutOfBudget("operation cancelled: actual cost limit exceeded")


Run = Callable[[Frame], Any]


def constant(value: Any) -> Run:
    """A constant."""
    return lambda _: value


def getter(of: Run, name: str) -> Run:
    """A field; it is an error if it is absent."""

    def run(frame: Frame) -> Any:
        holder = of(frame)
        if isinstance(holder, dict):
            try:
                return holder[name]
            except KeyError:
                raise EvaluationError(f"no such key: {name}") from None
        raise EvaluationError(f"no such overload: {name_of(holder)}.{name}")

    return run


def tester(of: Run, name: str) -> Run:
    """Whether a field is set."""

    def run(frame: Frame) -> Any:
        holder = of(frame)
        if isinstance(holder, Optional):
            if not holder.items:
                return False
            holder = holder.items[0]
        if isinstance(holder, dict):
            return name in holder
        raise EvaluationError(f"no such overload: {name_of(holder)}.{name}")

    return run


def optional_getter(of: Run, name: str) -> Run:
    """A field as an optional value."""

    def run(frame: Frame) -> Any:
        holder = of(frame)
        if isinstance(holder, Optional):
            if not holder.items:
                return holder
            holder = holder.items[0]
        if not isinstance(holder, dict):
            raise EvaluationError(f"no such overload: {name_of(holder)}.{name}")
        return Optional(holder[name]) if name in holder else Optional()

    return run


def look_up(holder: Any, key: Any) -> tuple[Any, ...]:
    """The value at an index or key as a tuple, empty if there is none."""
    if isinstance(holder, list):
        if isinstance(key, bool) or not isinstance(key, int | float) or int(key) != key:
            raise EvaluationError("unsupported index type in list")
        return (holder[int(key)],) if 0 <= key < len(holder) else ()
    if isinstance(holder, dict):
        if isinstance(key, list | dict):
            raise EvaluationError("unsupported key type")
        return (holder[key],) if key in holder else ()
    raise EvaluationError("no such overload")


def indexer(of: Run, key: Run) -> Run:
    """An item or entry; it is an error if it is absent."""

    def run(frame: Frame) -> Any:
        holder, index = of(frame), key(frame)
        items = look_up(holder, index)
        if items:
            return items[0]
        if isinstance(holder, list):
            raise EvaluationError(f"index out of bounds: {index}")
        raise EvaluationError(f"no such key: {index}")

    return run


def optional_indexer(of: Run, key: Run) -> Run:
    """An item or entry as an optional value."""

    def run(frame: Frame) -> Any:
        holder = of(frame)
        if isinstance(holder, Optional):
            if not holder.items:
                return holder
            holder = holder.items[0]
        return Optional(*look_up(holder, key(frame)))

    return run


def junction(runs: list[Run], decisive: bool) -> Run:
    """``||`` if true decides, ``&&`` if false does; an error counts only if nothing decides."""

    def run(frame: Frame) -> Any:
        failed: EvaluationError | None = None
        for operand in runs:
            try:
                value = operand(frame)
            except OutOfBudget:
                raise
            except EvaluationError as error:
                failed = failed or error
                continue
            if value is decisive:
                return decisive
            if value is not (not decisive):
                failed = failed or EvaluationError("no such overload")
        if failed is not None:
            raise failed
        return not decisive

    return run


def list_maker(parts: list[tuple[Run, bool]]) -> Run:
    """A list literal."""

    def run(frame: Frame) -> Any:
        out: list[Any] = []
        for item, optional in parts:
            value = item(frame)
            if not optional:
                out.append(value)
            elif isinstance(value, Optional):
                out += value.items
            else:
                raise EvaluationError("no such overload")
        return out

    return run


def map_maker(parts: list[tuple[Run, Run, bool]]) -> Run:
    """A map literal."""

    def run(frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key_of, value_of, optional in parts:
            key, value = key_of(frame), value_of(frame)
            if isinstance(key, list | dict):
                raise EvaluationError("unsupported key type")
            if key in out:
                raise EvaluationError(f"Failed with repeated key: {key}")
            if not optional:
                out[key] = value
            elif isinstance(value, Optional):
                if value.items:
                    out[key] = value.items[0]
            else:
                raise EvaluationError("no such overload")
        return out

    return run


def caller(overloads: list[Overload], runs: list[Run], kinds: list[CelKind]) -> Run:
    """A call, to one overload or to the one that the values fit.

    A nullable field may be null whatever its kind: then no overload fits.
    """
    costly = any(kind.name in ("string", "bytes", "dyn", "list") for kind in kinds)
    if len(overloads) == 1 and DYN not in kinds and all(DYN not in kind.of for kind in kinds):
        function = overloads[0].run
        if not costly and len(runs) == 2:
            first, second = runs

            def binary(frame: Frame) -> Any:
                try:
                    return function(first(frame), second(frame))
                except (TypeError, AttributeError):
                    raise EvaluationError("no such overload") from None

            return binary

        def run(frame: Frame) -> Any:
            values = [operand(frame) for operand in runs]
            if costly:
                frame.spend(cost_of(values))
            try:
                return function(*values)
            except (TypeError, AttributeError):
                raise EvaluationError("no such overload") from None

        return run

    def dispatch(frame: Frame) -> Any:
        values = [operand(frame) for operand in runs]
        frame.spend(cost_of(values))
        for overload in overloads:
            if all(map(is_of, values, overload.parameters)):
                try:
                    return overload.run(*values)
                except (TypeError, AttributeError):
                    break
        raise EvaluationError("no such overload")

    return dispatch


def cost_of(values: list[Any]) -> int:
    """The cost of a call, which scans its strings and lists."""
    return 1 + sum(
        len(value) // TEXT_COST if isinstance(value, str | bytes) else len(value)
        for value in values
        if isinstance(value, str | bytes | list)
    )


class Loop(NamedTuple):
    """The range of a macro, the slots it binds, and what one round costs."""

    over: Run
    slots: list[int]
    cost: int

    def rounds(self, frame: Frame) -> Any:
        """The items, keys for maps; variables are bound before each."""
        holder = self.over(frame)
        first = self.slots[0]
        slots, cost = frame.slots, self.cost
        if len(self.slots) == 1:
            if not isinstance(holder, list | dict):
                raise EvaluationError("no such overload")
            for item in holder:
                frame.spend(cost)
                slots[first] = item
                yield item, item
            return
        second = self.slots[1]
        if isinstance(holder, dict):
            pairs: Any = holder.items()
        elif isinstance(holder, list):
            pairs = enumerate(holder)
        else:
            raise EvaluationError("no such overload")
        for key, item in pairs:
            frame.spend(cost)
            slots[first], slots[second] = key, item
            yield key, item


def quantifier(loop: Loop, body: Run, *, decisive: bool) -> Run:
    """``exists`` if true decides, ``all`` if false does."""

    def run(frame: Frame) -> Any:
        failed: EvaluationError | None = None
        for _ in loop.rounds(frame):
            try:
                value = body(frame)
            except OutOfBudget:
                raise
            except EvaluationError as error:
                failed = failed or error
                continue
            if value is decisive:
                return decisive
            if value is not (not decisive):
                failed = failed or EvaluationError("no such overload")
        if failed is not None:
            raise failed
        return not decisive

    return run


def evaluate_condition(body: Run, frame: Frame) -> bool:
    """The result of a condition; anything but a bool is an error."""
    value = body(frame)
    if value is not True and value is not False:
        raise EvaluationError("no such overload")
    return value


def exactly_one(loop: Loop, body: Run) -> Run:
    """``exists_one``."""
    return lambda frame: sum(evaluate_condition(body, frame) for _ in loop.rounds(frame)) == 1


def filterer(loop: Loop, body: Run) -> Run:
    """``filter``."""
    return lambda frame: [item for _, item in loop.rounds(frame) if evaluate_condition(body, frame)]


def mapper(loop: Loop, test: Run | None, body: Run) -> Run:
    """``map`` and ``transformList``."""
    if test is None:
        return lambda frame: [body(frame) for _ in loop.rounds(frame)]
    return lambda frame: [
        body(frame) for _ in loop.rounds(frame) if evaluate_condition(test, frame)
    ]


def map_mapper(loop: Loop, test: Run | None, body: Run) -> Run:
    """``transformMap``."""

    def run(frame: Frame) -> Any:
        return {
            key: body(frame)
            for key, _ in loop.rounds(frame)
            if test is None or evaluate_condition(test, frame)
        }

    return run


def entry_mapper(loop: Loop, test: Run | None, body: Run) -> Run:
    """``transformMapEntry``."""

    def run(frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for _ in loop.rounds(frame):
            if test is not None and not evaluate_condition(test, frame):
                continue
            entries = body(frame)
            if not isinstance(entries, dict):
                raise EvaluationError("no such overload")
            for key, value in entries.items():
                if key in out:
                    raise EvaluationError(f"insert failed: key {key} already exists")
                out[key] = value
        return out

    return run


def sorter(loop: Loop, body: Run) -> Run:
    """``sortBy``."""

    def run(frame: Frame) -> Any:
        pairs = [(item, body(frame)) for _, item in loop.rounds(frame)]
        return sort_by_keys([item for item, _ in pairs], [key for _, key in pairs])

    return run
