"""The program: which commands there are, and how each of them ends.

Exit codes: 0 fine; 1 findings, refusal or not found; 2 the work could not start (usage,
configuration, connection) or the program has a fault; 130 after Ctrl-C; 141 when the reader of our
output closed the pipe. Every error is one sentence on stderr that says what to do. A traceback is
printed only for our own faults, and only with ``-v``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from zonewise.cli.program.command import CommandEntry, CommandGroup, CommandRefused, UnknownWord
from zonewise.cli.program.screen import screen_output

COMMANDS = {
    "Try it": {
        "up": "Run a cluster on this machine, with no Kubernetes.",
        "status": "Show zones, pods and in-zone traffic on a page.",
        "fail": "Make a node, rack or zone of that cluster fail.",
        "heal": "Restore a failed node, rack or zone.",
    },
    "Understand a cluster": {"explain": "Explain hints, budgets, pods, names and volumes."},
    "Run on a cluster": {
        "install": "Print manifests for a cluster.",
        "controller": "Run the controllers: hints, PodLocators, budgets.",
        "csi": "Provision volumes next to the pods that use them.",
        "takeover": "Let living domains use the volumes of a failed one.",
        "dns": "Serve DNS names with nearby endpoints.",
        "proxy": "Send a node's packets to nearby endpoints.",
        "webhook": "Serve admission webhooks.",
    },
    "About this program": {
        "version": "Show the versions of client and server.",
        "completion": "Print a script that lets your shell complete commands.",
    },
}
"""The modules of commands and their sentences, by the sections of the help."""

ENTRIES = {
    name: CommandEntry(f"zonewise.cli.{name}", sentence, section)
    for section, commands in COMMANDS.items()
    for name, sentence in commands.items()
} | {"__complete": CommandEntry("zonewise.cli.completion", function="complete")}

EXAMPLES = (
    "up                          # see what Zonewise does, without a cluster",
    "version --context staging   # check that a cluster answers, and its Kubernetes version",
)

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def _print_version(ctx: click.Context, _param: click.Parameter, requested: bool) -> None:
    if requested and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"zonewise {version('zonewise')}")
        ctx.exit()


def make_root() -> CommandGroup:
    """The group of all commands."""
    return CommandGroup(
        "zonewise",
        entries=ENTRIES,
        examples=EXAMPLES,
        params=[
            click.Option(
                ["--version"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_print_version,
                help="Show the version of this program and exit.",
            )
        ],
        help=(
            "Zonewise makes a Kubernetes cluster aware of where things are: it keeps traffic near "
            "its source, puts volumes next to the pods that use them, and never disrupts more of "
            "a failure domain than its budgets allow."
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and give its exit code."""
    names = {"kubectl-zonewise": "kubectl zonewise", "__main__.py": "python -m zonewise"}
    program = names.get(Path(sys.argv[0]).name, "zonewise")
    with screen_output():
        return _run(program, list(sys.argv[1:] if arguments is None else arguments))


def _run(program: str, arguments: list[str]) -> int:
    """The exit code; errors of the output itself are handled here."""
    try:
        code = _invoke(program, arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        _drop_output()
        about = f"{error.filename}: " if error.filename else ""
        why = (error.strerror or str(error)).lower()
        advice = "free disk space or correct permissions and try again"
        return _print_error(f"stopped: {about}{why}; {advice}")
    return code


def _invoke(program: str, arguments: list[str]) -> int:
    """The exit code of a command; what it raises is printed as one sentence."""
    group = make_root()
    instruction = os.environ.get("_ZONEWISE_COMPLETE")
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "zonewise", "_ZONEWISE_COMPLETE", instruction)
    try:
        # The screen cleans the output; click would remove colours where there is no terminal.
        with group.make_context(program, arguments, color=True) as context:
            code = group.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except CommandRefused as refusal:
        return _print_error(refusal.message, code=refusal.exit_code)
    except click.ClickException as error:
        return _print_error(_describe_usage(error))
    except click.Abort:
        return _INTERRUPTED
    except OSError:
        raise
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, BrokenPipeError):
            raise error from None
        return _print_failure(error, verbose=_is_verbose(arguments))
    return code if isinstance(code, int) else 0


def _print_failure(error: Exception, *, verbose: bool) -> int:
    from zonewise.api.errors import ApiError, ServerError, Unauthorized, ZonewiseError

    if isinstance(error, ZonewiseError):
        refused = isinstance(error, ApiError) and not isinstance(error, ServerError | Unauthorized)
        return _print_error(str(error), code=1 if refused else 2)
    if verbose:
        import traceback

        traceback.print_exception(error)
    what = f"{type(error).__name__}: {error}"[:200]
    return _print_error(f"this is a fault in zonewise ({what}); -v shows where, please report it")


def _describe_usage(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else "zonewise"
    advice = f'see "{path} --help"'
    match error:
        case click.exceptions.NoSuchCommand():
            fault = f'unknown command "{error.command_name}"'
            if error.possibilities:
                advice = f'did you mean "{path} {error.possibilities[0]}"?'
        case UnknownWord():
            fault = error.format_message()
            advice = f'did you mean "{path} {error.like}"?'
        case click.NoSuchOption():
            fault = f'unknown flag {error.option_name} for "{path}"'
            if error.possibilities:
                advice = f"did you mean {error.possibilities[0]}?"
        case _:
            fault = error.format_message().rstrip(".")
            fault = fault[:1].lower() + fault[1:]
    return f"{fault}; {advice}"


def _print_error(sentence: str, *, code: int = 2) -> int:
    from zonewise.api.values.printable import escape_unprintable

    with contextlib.suppress(OSError):
        click.echo(f"error: {escape_unprintable(' '.join(sentence.split()))}", err=True)
    return code


def _is_verbose(arguments: list[str]) -> bool:
    return any(
        word == "--verbose" or (word.startswith("-v") and set(word[1:]) == {"v"})
        for word in arguments
    )


def _drop_output() -> None:
    # Without this the interpreter would try to write the rest once more as it exits, and complain.
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
