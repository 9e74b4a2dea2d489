"""``zonewise completion``: scripts that let a shell, or kubectl, complete our commands.

A shell's script calls this program with click's environment variable. kubectl runs
``kubectl_complete-zonewise WORD…``, which is ``zonewise __complete``: the last word is the
unfinished one. It prints one word per line with a tab and its meaning, and at the end a number; 4
means "no file names".
"""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from zonewise.cli.program.command import Command

_NO_FILES = ":4"
_KUBECTL = """#!/bin/sh
# Lets kubectl complete "kubectl zonewise": save as kubectl_complete-zonewise, executable, in $PATH.
exec zonewise __complete "$@"
"""


@click.command(
    "completion",
    cls=Command,
    examples=(
        "completion bash > ~/.local/share/bash-completion/completions/zonewise  # for bash",
        'completion zsh > "${fpath[1]}/_zonewise"                               # for zsh',
        "completion fish > ~/.config/fish/completions/zonewise.fish             # for fish",
        "completion kubectl > ~/.local/bin/kubectl_complete-zonewise            # kubectl zonewise",
    ),
)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish", "kubectl"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and flags.

    SHELL is bash (4.4 or newer), zsh or fish; kubectl is for the plugin and needs chmod +x.
    Names of contexts, clusters and users are completed from the kubeconfig.
    """
    if shell == "kubectl":
        click.echo(_KUBECTL, nl=False)
        return
    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(context.find_root().command, {}, "zonewise", "_ZONEWISE_COMPLETE")
    # The base method: bash's own requires a bash here, but the script may be used elsewhere.
    click.echo(ShellComplete.source(completer))


@click.command(
    "__complete",
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def complete(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the words that may come next."""
    root = context.find_root().command
    *before, unfinished = words or ("",)
    completer = ShellComplete(root, {}, "zonewise", "_ZONEWISE_COMPLETE")
    for item in completer.get_completions(before, unfinished):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)
