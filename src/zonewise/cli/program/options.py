"""The flags every command understands, and those that several commands share.

Global flags mean what they mean to ``kubectl``. They may be before or after the command's name:
``zonewise.cli.program.command`` moves them behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The values of the global flags. ``request_timeout`` is in seconds; 0 is no limit."""

    kubeconfig: str | None = None
    context: str | None = None
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None
    act_as: str | None = None
    act_as_groups: tuple[str, ...] = ()
    act_as_uid: str | None = None
    request_timeout: float | None = None
    verbose: int = 0
    log_format: Literal["text", "json"] = "text"

    def for_serving(self) -> Options:
        """The same for a long-running program, whose log is read later: it is more verbose."""
        return replace(self, verbose=max(1, self.verbose))


def note_namespace_ignored(options: Options, why: str) -> None:
    """Print that ``-n`` has no effect here, if it was given."""
    if options.namespace is not None:
        from zonewise.api.values.printable import escape_unprintable

        click.echo(
            f"note: -n {escape_unprintable(options.namespace)} has no effect: {why}", err=True
        )


def parse_duration(text: str) -> float:
    """Seconds, from ``10s``, ``1m30s``, ``500ms`` or a bare number of seconds."""
    from zonewise.api.values import times

    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    return times.parse_duration(text)


def global_options() -> list[click.Option]:
    """New instances of the flags that every command takes."""
    return [
        click.Option(
            ["--kubeconfig"],
            metavar="FILE",
            type=click.Path(),
            help="The kubeconfig to use, instead of $KUBECONFIG or ~/.kube/config.",
        ),
        click.Option(
            ["--context"],
            metavar="NAME",
            shell_complete=_complete_kubeconfig("context"),
            help="The kubeconfig context to use.",
        ),
        click.Option(
            ["--cluster"],
            metavar="NAME",
            shell_complete=_complete_kubeconfig("cluster"),
            help="The kubeconfig cluster to use, instead of the context's.",
        ),
        click.Option(
            ["--user"],
            metavar="NAME",
            shell_complete=_complete_kubeconfig("user"),
            help="The kubeconfig user to use, instead of the context's.",
        ),
        click.Option(
            ["-n", "--namespace"],
            metavar="NAME",
            shell_complete=_complete_namespaces,
            help="The namespace to work in, instead of the context's.",
        ),
        click.Option(
            ["--as", "act_as"], metavar="NAME", help="Act as this user, if the cluster lets you."
        ),
        click.Option(
            ["--as-group", "act_as_groups"],
            metavar="NAME",
            multiple=True,
            help="With --as: the group to act as; may be repeated.",
        ),
        click.Option(
            ["--as-uid", "act_as_uid"], metavar="UID", help="With --as: the uid to act as."
        ),
        click.Option(
            ["--request-timeout"],
            metavar="TIME",
            callback=_parse_seconds,
            help="Give up on a request after this time (10s, 1m); 0 waits forever.  [default: 30s]",
        ),
        click.Option(
            ["-v", "--verbose"], count=True, help="Write a log to stderr; twice for every detail."
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice(["text", "json"]),
            default="text",
            help="The format of log lines.  [default: text]",
        ),
    ]


def shared_options() -> list[click.Option]:
    """New instances of the flags that commands which read a cluster share."""
    return [
        all_namespaces_option(),
        output_option("table", "json", "yaml", "jsonl"),
        files_option(),
    ]


def add_options(*options: click.Option) -> Callable[[F], F]:
    """A decorator that gives a command these flags."""

    def add(function: F) -> F:
        params: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
        params += reversed(options)
        return function

    return add


def output_option(*formats: str) -> click.Option:
    """``-o``: the command can print these formats besides its own."""
    return click.Option(
        ["-o", "--output"],
        metavar="|".join(formats),
        type=click.Choice(formats),
        help="The output format.",
    )


def all_namespaces_option() -> click.Option:
    """``-A``: the command works on a namespace or on all of them."""
    return click.Option(
        ["-A", "--all-namespaces"], is_flag=True, help="Work on every namespace at once."
    )


def files_option() -> click.Option:
    """``-f``: the command works on a dump instead of a cluster."""
    return click.Option(
        ["-f", "--filename", "files"],
        metavar="FILE",
        multiple=True,
        type=click.Path(allow_dash=True),
        help="Read what 'kubectl get -o yaml' printed (a file, a folder or -) instead of a "
        "cluster; repeated, they make one cluster.",
    )


def feature_gates_option() -> click.Option:
    """``--feature-gates``, as text."""
    return click.Option(
        ["--feature-gates"],
        metavar="A=true,B=false",
        default="",
        help="Switch features: ServiceTopology, ServiceTrafficPolicy, TopologyAwareHints; see"
        " docs/embedded-reference.md.",
    )


def budgets_option() -> click.Option:
    """``--budgets``: what is done about budgets per failure domain."""
    return click.Option(
        ["--budgets"],
        type=click.Choice(["off", "observe", "enforce"]),
        default="off",
        help="Budgets per failure domain: ignore them (off), report what they allow (observe), or"
        " refuse evictions and deletions that they do not allow (enforce).  [default: off]",
    )


def metrics_option(address: str) -> click.Option:
    """``--metrics-listen`` with its default."""
    return click.Option(
        ["--metrics-listen"],
        metavar="ADDRESS:PORT",
        default=address,
        help=f"Where to serve metrics and health.  [default: {address}]",
    )


def duration_option(*flag: str, default: str, help: str) -> click.Option:
    """A flag that is a time, given to the command in seconds."""
    return click.Option(
        flag,
        metavar="TIME",
        default=default,
        callback=_parse_seconds,
        help=f"{help}  [default: {default}]",
    )


def _parse_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    try:
        return None if value is None else parse_duration(value.strip())
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _complete_kubeconfig(
    kind: Literal["context", "cluster", "user"],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem[str]]]:
    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        import os
        from pathlib import Path

        from zonewise.api.errors import ZonewiseError
        from zonewise.runtime.config.kubeconfig import Kubeconfig, default_files

        named = ctx.params.get("kubeconfig")
        try:
            config = Kubeconfig([Path(named)] if named else default_files(os.environ))
        except ZonewiseError:
            return []
        return [CompletionItem(name) for name in config.names(kind) if name.startswith(incomplete)]

    return complete


def _complete_namespaces(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem[str]]:
    from zonewise.cli.program.cluster_completion import complete_from, list_namespaces

    return complete_from(list_namespaces)(ctx, param, incomplete)
