"""``zonewise install``: manifests for a real cluster, on the standard output."""

from __future__ import annotations

from importlib.metadata import version
from typing import cast

import click

from zonewise.cli.command import Command
from zonewise.cli.hintoptions import Deciding, Rollout, decision_options, rollout_options
from zonewise.cli.options import Options


@click.command(
    "install",
    cls=Command,
    examples=(
        "install | kubectl apply -f -                          # look on, change nothing",
        "install --endpointslices adopt | kubectl apply -f -   # on a managed cluster",
        "install | kubectl delete -f -                         # remove everything",
    ),
)
@rollout_options
@decision_options
@click.option("--image", metavar="NAME", help="The image to run.  [default: zonewise:VERSION]")
@click.option(
    "--replicas", type=click.IntRange(min=1), default=2, help="How many pods.  [default: 2]"
)
@click.option(
    "--alerts",
    type=click.Choice(["none", "prometheusrule", "configmap"]),
    default="none",
    help="Alert rules, for the Prometheus operator or as a file in a ConfigMap.  [default: none]",
)
@click.option("--dashboard", is_flag=True, help="A Grafana dashboard, in a ConfigMap.")
@click.pass_obj
def command(
    options: Options,
    rollout: Rollout,
    deciding: Deciding,
    image: str | None,
    replicas: int,
    alerts: str,
    dashboard: bool,
) -> None:
    """Print everything that runs Zonewise on a cluster: apply it, or delete it again.

    Without --endpointslices nothing is changed but conditions and events on Services. 'own' needs a
    controller manager that was started with --controllers=*,-endpointslice-controller. -n is the
    namespace to install into; it is made. See docs/install.md.
    """
    import yaml

    from zonewise.api.selector import EVERYTHING
    from zonewise.cli.deploy import Wanted, manifests
    from zonewise.cli.deploy.wanted import NAME, Alerts
    from zonewise.embedded.rules.names import label

    namespace = options.namespace or NAME
    if label(namespace):
        raise click.UsageError(
            f'"{namespace}" cannot be a namespace; use lower case letters, digits and dashes'
        )
    own = version("zonewise")
    wanted = Wanted(
        role=rollout.role,
        image=image or f"zonewise:{own}",
        version=own,
        namespace=namespace,
        replicas=replicas,
        arguments=rollout.flags + deciding.flags,
        namespaces_are_selected=rollout.namespaces != EVERYTHING,
        alerts=cast("Alerts", alerts),
        dashboard=dashboard,
    )
    objects = manifests(wanted)
    click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)
