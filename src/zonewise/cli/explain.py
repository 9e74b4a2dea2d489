"""``zonewise explain``: why a Service has its hints, what a budget allows, where a volume is.

From a cluster or from a dump.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from zonewise.cli.program.cluster_completion import complete_from, list_names
from zonewise.cli.program.command import Command, UnknownWord
from zonewise.cli.program.hint_options import DecisionOptions, decision_options
from zonewise.cli.program.options import (
    Options,
    add_options,
    all_namespaces_option,
    files_option,
    output_option,
)

_SERVICE = ("service", "svc")
_SERVICES = ("services", "svcs")
_DISRUPTION = ("budget", "budgets", "pod", "pods", "pdb", "tdb")
_NAME = "name"
_VOLUMES = {"volume": "volume", "pv": "volume", "pvc": "pvc"}
_WORDS = (*_SERVICE, *_SERVICES, *_DISRUPTION, _NAME, *_VOLUMES)
_ALSO = {
    "po": "pod",
    "poddisruptionbudget": "pdb",
    "poddisruptionbudgets": "pdb",
    "topologydisruptionbudget": "tdb",
    "topologydisruptionbudgets": "tdb",
    "persistentvolume": "pv",
    "persistentvolumes": "pv",
    "persistentvolumeclaim": "pvc",
    "persistentvolumeclaims": "pvc",
}
"""kubectl's other names for them."""
_GROUPS = ("", "policy", "zonewise.io")
_SINGLE = {"services": "service", "svcs": "service", "budgets": "budget", "pods": "pod"}
_SYNONYMS = {"svc": "service", "pv": "volume"}


class _What(click.Choice[str]):
    """What to explain; ``TYPE/NAME``, as kubectl prints objects, has both words in one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The canonical word, with ``/NAME`` if a name was given."""
        word, slash, name = str(value).partition("/")
        word = _translate(word)
        near = get_close_matches(word.lower(), self.choices, n=1)
        if near and word.lower() not in self.choices:
            raise UnknownWord(word, near[0], ctx)
        choice = super().convert(word, param, ctx)
        return f"{_SINGLE.get(choice, choice)}/{name}" if slash else choice


def _translate(word: str) -> str:
    """Our word for one of kubectl's, or the word itself."""
    kind, _, group = word.lower().partition(".")
    return _ALSO.get(kind, kind) if group in _GROUPS else word


def _drop_kind(what: str, name: str) -> str:
    """The name without the kind of ``what`` before it, as kubectl prints objects.

    A budget's kind stays, in our word, where ``what`` may be of either kind.
    """
    word, slash, bare = name.partition("/")
    kind = _translate(word)
    kind = _SINGLE.get(kind, kind)
    if slash and _SYNONYMS.get(kind, kind) == _SYNONYMS.get(what, what):
        return bare
    return f"{kind}/{bare}" if slash and what == "budget" else name


def _list_names(ctx: click.Context, _incomplete: str) -> list[str]:
    """The names of objects of the kind that was chosen."""
    from zonewise.api import (
        PersistentVolume,
        PersistentVolumeClaim,
        Pod,
        PodDisruptionBudget,
        Service,
        TopologyDisruptionBudget,
    )

    kinds: dict[str, tuple[type[Any], ...]] = {
        **dict.fromkeys(_SERVICE, (Service,)),
        "pod": (Pod,),
        "budget": (PodDisruptionBudget, TopologyDisruptionBudget),
        "pdb": (PodDisruptionBudget,),
        "tdb": (TopologyDisruptionBudget,),
        "pvc": (PersistentVolumeClaim,),
        **dict.fromkeys(("pv", "volume"), (PersistentVolume,)),
    }
    return list_names(ctx, *kinds.get(str(ctx.params.get("what")), ()))


def _list_clients(ctx: click.Context, _incomplete: str) -> list[str]:
    from zonewise.api import Pod

    return list_names(ctx, Pod, everywhere=True)


@click.command(
    "explain",
    cls=Command,
    examples=(
        "explain service web                            # of the cluster in your kubeconfig",
        "explain service web -n shop -f dump.yaml       # of a dump, without a cluster",
        "explain services -A -f dumps -o jsonl          # every Service of every file in a folder",
        "explain budget web -n shop                     # what a budget allows in each domain",
        "explain pods -A -f dump.yaml -o jsonl          # which pods may be disrupted now",
        "explain name db.shop.svc --client shop/web-0   # what that pod gets, and why",
        "explain pvc data-db-0 -n shop                  # where its volume is, and why",
    ),
)
@click.argument("what", metavar="WHAT", type=_What(_WORDS))
@click.argument("name", required=False, shell_complete=complete_from(_list_names))
@click.option(
    "--client",
    metavar="NAMESPACE/POD",
    shell_complete=complete_from(_list_clients),
    help="For a name: the client, a pod or an address.",
)
@click.option(
    "--cluster-domain",
    metavar="DOMAIN",
    default="cluster.local",
    help="For a name: the cluster's domain.  [default: cluster.local]",
)
@decision_options
@add_options(
    all_namespaces_option(), files_option(), output_option("table", "json", "yaml", "jsonl")
)
@click.pass_obj
def command(
    options: Options,
    what: str,
    name: str | None,
    client: str | None,
    cluster_domain: str,
    decision: DecisionOptions,
    all_namespaces: bool,
    files: tuple[str, ...],
    output: str | None,
) -> int:
    """Explain hints, budgets, DNS names and volumes: what was decided, and why.

    WHAT is service, services, budget, budgets, pod, pods, pdb, tdb, name, volume or pvc. TYPE/NAME
    works as with kubectl: 'explain service/web', 'explain pdb/web', 'explain pod pod/web-0'.

    'explain service NAME' shows one Service in full: whether it has hints and why, its zones, its
    endpoints, and what would help. 'explain services' shows a line for each.

    'explain budget NAME' shows what a budget allows in each domain, 'explain pod NAME' whether a
    pod may be disrupted, and which budgets forbid it.

    'explain name NAME --client NAMESPACE/POD' shows what the name server answers that pod: the rule
    and the key that chose the endpoints, and why others were left out. A short name is looked up as
    in the pod, by the search path of its namespace; without --client it is a Service in the
    namespace of -n.

    'explain pvc NAME' and 'explain volume NAME' show which pool a volume was cut from, where it can
    be used and why, and what would help a claim that has no volume.

    With -f everything is read from a dump; a folder has one cluster in each file. A dump that lacks
    a kind which the answer needs is refused.
    """
    what, slash, written = what.partition("/")
    if slash:
        if name:
            raise click.UsageError(f"there are two names, {written} and {name}; give only one")
        name = written
    if what == _NAME:
        from zonewise.cli.explaining.name import print_name

        if not name:
            raise click.UsageError("a DNS name is missing; give one, for example web.shop.svc")
        gates = decision.gates if decision.gate_flags else None
        return print_name(options, name, client, cluster_domain, gates, files, output)
    if name:
        name = _drop_kind(what, name)
    if client is not None:
        raise click.UsageError("--client is for 'explain name'; leave it out")
    if what in _VOLUMES:
        from zonewise.cli.explaining.volumes import print_volume

        if not name:
            raise click.UsageError(f"a name is missing; write explain {what} NAME")
        if all_namespaces:
            raise click.UsageError("-A does not go with a name; give the namespace with -n")
        print_volume(options, _VOLUMES[what], name, files, output)
        return 0
    if what in _DISRUPTION:
        from zonewise.cli.explaining.budgets import print_budgets

        print_budgets(
            options, what, name, all_namespaces=all_namespaces, files=files, output=output
        )
        return 0
    if what in _SERVICE and not name:
        raise click.UsageError(f"a name is missing; write explain {what} NAME")
    if what in _SERVICES and name:
        raise click.UsageError(f"{what} takes no name; write explain service {name}")
    if name and all_namespaces:
        raise click.UsageError("-A does not go with a name; give the namespace with -n")
    from zonewise.cli.explaining.services import print_services

    print_services(
        options, name, decision, all_namespaces=all_namespaces, files=files, output=output
    )
    return 0
