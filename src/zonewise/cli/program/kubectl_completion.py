"""What kubectl calls to complete ``kubectl zonewise …``.

kubectl runs ``kubectl_complete-zonewise WORD…``, whose last word is the unfinished one, and reads
one word per line, a tab and its meaning, and at the end a number; 4 says "and no file names".
"""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete

_NO_FILES = ":4"


@click.command(
    "__complete",
    hidden=True,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Print the words that may come next."""
    root = context.find_root().command
    *before, unfinished = words or ("",)
    completer = ShellComplete(root, {}, "zonewise", "_ZONEWISE_COMPLETE")
    for item in completer.get_completions(before, unfinished):
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)
