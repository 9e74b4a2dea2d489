"""Commands and groups as ``kubectl`` users expect them.

- Global flags may be before the command's name. A group moves flags that precede it behind it, so
  that they are parsed in one place, by the command that takes them.
- A group has its commands by name, sentence and module, and imports a module only when its command
  runs: help and completion stay fast however many commands there are.
- ``help NAME`` is ``NAME --help``, and a group without a command prints its help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click
from click.shell_completion import CompletionItem

from zonewise.cli.program.dump_kinds import DUMP_COMMAND
from zonewise.cli.program.options import Options, global_options, shared_options

_GLOBAL = tuple(option.name for option in global_options() if option.name)
_HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command of a group: where it is and what it does. Without a summary it is hidden."""

    module: str
    summary: str = ""
    section: str = ""
    function: str = "command"


class CommandRefused(click.ClickException):
    """The answer is no, or what was named does not exist: the program ends with 1."""

    exit_code = 1


class UnknownWord(click.UsageError):
    """A word of a command that is not known, but is like one that is."""

    def __init__(self, word: str, like: str, ctx: click.Context | None) -> None:
        super().__init__(f"unknown word {word!r}", ctx)
        self.like = like


class Command(click.Command):
    """A command with the global flags; its function gets them as ``Options`` by ``pass_obj``.

    Lines of ``examples`` are a command line without the program's name, a ``#`` and what it does.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        kwargs.setdefault("context_settings", _HELP)
        kwargs["params"] = [*(kwargs.get("params") or ()), *global_options()]
        super().__init__(*args, **kwargs)
        self.examples = examples

    def invoke(self, ctx: click.Context) -> Any:
        """Run the function."""
        ctx.obj = Options(**{name: ctx.params.pop(name) for name in _GLOBAL})
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own flags; the global ones are mentioned, not repeated."""
        params = self.get_params(ctx)
        own = [p for p in params if isinstance(p, click.Option) and p.name not in _GLOBAL]
        _write_examples(ctx, formatter, self.examples)
        _write_flags(ctx, formatter, "Options", own)
        if any(param.name == "files" for param in own):
            with formatter.section("A dump for -f"):
                formatter.write(f"  {DUMP_COMMAND} > dump.yaml\n")
        formatter.write_paragraph()
        root = ctx.find_root().info_name
        formatter.write_text(f"More flags, such as --context and -n: see '{root} --help'.")


class CommandGroup(click.Group):
    """A group whose commands are imported when they run."""

    def __init__(
        self,
        *args: Any,
        entries: dict[str, CommandEntry],
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("context_settings", _HELP)
        kwargs["params"] = [*(kwargs.get("params") or ()), *global_options(), *shared_options()]
        kwargs["no_args_is_help"] = False
        super().__init__(*args, **kwargs)
        self.entries = entries
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Find the command's name and leave all flags to it."""
        args = self._move_name_first(args)
        if args and args[0] == "help":
            args = self._move_name_first([*args[1:], "--help"])
        rest = super().parse_args(ctx, args)
        named = args and not args[0].startswith("-")
        if not (named or ctx.resilient_parsing):
            click.echo(ctx.get_help())
            ctx.exit()
        return rest

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of that name, imported."""
        name = args[0]
        entry = self.entries.get(name)
        if entry is not None:
            return name, getattr(import_module(entry.module), entry.function), args[1:]
        if ctx.resilient_parsing:
            return None, None, args[1:]
        raise click.exceptions.NoSuchCommand(name, possibilities=self._list_visible(), ctx=ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by purpose, examples, and the flags that all commands have."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self._list_visible():
            entry = self.entries[name]
            sections.setdefault(entry.section, []).append((name, entry.summary))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)
        _write_examples(ctx, formatter, self.examples)
        params = self.get_params(ctx)
        shared = {option.name for option in shared_options()}
        _write_flags(ctx, formatter, "Global flags", [p for p in params if p.name not in shared])
        _write_flags(
            ctx,
            formatter,
            "Flags of commands that read a cluster",
            [p for p in params if p.name in shared],
        )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Names of commands and flags, without importing anything."""
        commands = [
            CompletionItem(name, help=self.entries[name].summary)
            for name in self._list_visible()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def _list_visible(self) -> list[str]:
        return [name for name, entry in self.entries.items() if entry.summary]

    def _move_name_first(self, args: list[str]) -> list[str]:
        valued = {
            text
            for param in self.params
            if isinstance(param, click.Option) and not (param.is_flag or param.count)
            for text in param.opts
        }
        index = 0
        while index < len(args) and args[index] not in ("-", "--"):
            token = args[index]
            if not token.startswith("-"):
                return [token, *args[:index], *args[index + 1 :]]
            index += 2 if _takes_next(token, valued) else 1
        return args


def _takes_next(token: str, valued: set[str]) -> bool:
    """Whether a flag's value is the next argument."""
    if token.startswith("--"):
        return token in valued
    for position, letter in enumerate(token[1:], start=2):
        if f"-{letter}" in valued:
            return position == len(token)
    return False


def _write_examples(
    ctx: click.Context, formatter: click.HelpFormatter, examples: Sequence[str]
) -> None:
    if not examples:
        return
    root = ctx.find_root().info_name
    rows = [line.partition("#") for line in examples]
    width = max(len(call.strip()) for call, _, _ in rows)
    with formatter.section("Examples"):
        for call, _, what in rows:
            formatter.write(f"  {root} {call.strip():<{width}}  # {what.strip()}\n")


def _write_flags(
    ctx: click.Context,
    formatter: click.HelpFormatter,
    title: str,
    params: Sequence[click.Parameter],
) -> None:
    rows = [row for param in params if (row := param.get_help_record(ctx)) is not None]
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
