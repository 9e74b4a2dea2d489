"""``zonewise install``: manifests for a real cluster, on the standard output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from zonewise.api.errors import ConfigError
from zonewise.cli.program.budget_options import budgets_option
from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import Deciding, Rollout, decision_options, rollout_options
from zonewise.cli.program.options import Options

if TYPE_CHECKING:
    from zonewise.install.installation import BudgetsMode, ClientAuthority

API_SERVER = "10.0.0.1:6443"

IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?"
)
"""A reference to an image: perhaps a registry, a path, perhaps a tag or a digest."""

OF_CONTROLLER = {
    "role": "--endpointslices",
    "service_selector": "--service-selector",
    "namespace_selector": "--namespace-selector",
    "missing_cpu": "--missing-cpu",
    "missing_zone": "--missing-zone",
    "feature_gates": "--feature-gates",
    "budgets": "--budgets",
    "gated_users": "--gated-user",
    "webhook_from": "--webhook-from",
    "metrics_from": "--metrics-from",
    "webhook_client_ca": "--webhook-client-ca",
    "alerts": "--alerts",
    "dns": "--dns",
    "dashboard": "--dashboard",
}
"""Flags that neither the manifests of the proxy nor those of the CSI driver take."""

NOT_OF_PROXY = {
    "replicas": "--replicas",
    "backend": "--backend",
    "ceph_monitors": "--ceph-monitors",
}


@click.command(
    "install",
    cls=Command,
    examples=(
        "install | kubectl apply -f -                          # report only, change nothing",
        "install --endpointslices adopt | kubectl apply -f -   # on a managed cluster",
        "install --budgets enforce | kubectl apply -f -        # budgets per failure domain",
        "install --dns | kubectl apply -f -                    # with a name server",
        "install --proxy --cluster-cidr 10.244.0.0/16 --api-server 10.0.0.1:6443   # the proxy",
        "install --csi | kubectl apply -f -                    # the CSI driver",
        "install | kubectl delete --ignore-not-found -f -      # remove everything",
    ),
)
@rollout_options
@decision_options
@budgets_option
@click.option(
    "--gated-user",
    "gated_users",
    metavar="NAME",
    multiple=True,
    help="A user whose deletions of pods are held, too: that of a workload controller which is not"
    " Kubernetes' own; may be repeated.",
)
@click.option(
    "--webhook-from",
    metavar="NETWORK|NAMESPACE",
    multiple=True,
    help="Who may call the webhook, for its NetworkPolicy: the API servers' networks, or the"
    " namespace of their tunnel's agents; may be repeated.  [default: everybody]",
)
@click.option(
    "--metrics-from",
    metavar="NETWORK|NAMESPACE",
    multiple=True,
    help="Who may read metrics, for the NetworkPolicies: the namespace or the networks of"
    " Prometheus; may be repeated.  [default: everybody]",
)
@click.option(
    "--webhook-client-ca",
    metavar="FILE|configmap/NAME",
    help="Require client certificates of API servers, signed by this authority: a PEM file, or a"
    " ConfigMap with a key ca.crt; docs/install.md has the API server's part.",
)
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
@click.option("--dns", is_flag=True, help="A name server with near answers: see docs/dns.md.")
@click.option("--dashboard", is_flag=True, help="A Grafana dashboard, in a ConfigMap.")
@click.option("--proxy", is_flag=True, help="The proxy of every node instead of the controller.")
@click.option(
    "--csi", is_flag=True, help="The CSI driver with its sidecars instead of the controller."
)
@click.option(
    "--backend",
    type=click.Choice(["embedded", "ceph-rbd", "ceph-fs"]),
    metavar="embedded|ceph-rbd|ceph-fs",
    help="With --csi: where volumes are kept.  [default: embedded]",
)
@click.option(
    "--ceph-monitors",
    metavar="A:3300,B:3300",
    help="With --csi on Ceph: the cluster's monitors; its key is in the Secret csi-ceph. They are"
    " in the ConfigMap csi: applied again, it resets pools and takeovers; docs/csi.md keeps them.",
)
@click.option("--cluster-cidr", metavar="A,B", help="With --proxy: the networks of pods.")
@click.option(
    "--service-proxy-name",
    metavar="NAME",
    help="With --proxy: only Services labelled for this proxy, beside another one.",
)
@click.option(
    "--api-server",
    metavar="HOST:PORT",
    help="With --proxy: where the API server is, without any proxy; needed unless another proxy"
    " serves its ClusterIP.",
)
@click.pass_obj
def command(
    options: Options,
    rollout: Rollout,
    deciding: Deciding,
    budgets: BudgetsMode,
    gated_users: tuple[str, ...],
    webhook_from: tuple[str, ...],
    metrics_from: tuple[str, ...],
    webhook_client_ca: str | None,
    image: str | None,
    replicas: int,
    alerts: str,
    dns: bool,
    dashboard: bool,
    proxy: bool,
    csi: bool,
    backend: str | None,
    ceph_monitors: str | None,
    cluster_cidr: str | None,
    service_proxy_name: str | None,
    api_server: str | None,
) -> None:
    """Print everything that runs Zonewise on a cluster: apply it, or delete it again.

    Without --endpointslices and --budgets nothing is written but conditions and events on Services,
    and PodLocators. 'own' needs a controller manager that was started with
    --controllers=*,-endpointslice-controller. -n is the namespace to install into; it is made. See
    docs/install.md.
    """
    import yaml

    from zonewise.api.values.names import label_errors
    from zonewise.api.values.selector import EVERYTHING
    from zonewise.install.installation import NAME, Alerts, Installation
    from zonewise.install.manifests import render_manifests

    namespace = options.namespace or NAME
    if label_errors(namespace):
        raise click.UsageError(
            f'"{namespace}" cannot be a namespace; use lower case letters, digits and dashes'
        )
    own = version("zonewise")
    given = {
        "--cluster-cidr": cluster_cidr,
        "--service-proxy-name": service_proxy_name,
        "--api-server": api_server,
    }
    if proxy and csi:
        raise click.UsageError("--proxy and --csi are installed one after the other; leave out one")
    _refuse_dropped(click.get_current_context(), proxy=proxy, csi=csi)
    if gated_users and budgets == "off":
        raise click.UsageError(
            "--gated-user has no effect without --budgets; add --budgets enforce"
        )
    if "" in gated_users:
        raise click.UsageError("--gated-user is empty; give the name of a user")
    if image is not None and not IMAGE.fullmatch(image):
        raise click.UsageError(
            f"--image {image[:100]!r} is not the name of an image, write it like"
            " registry.example/zonewise:1.0"
        )
    if proxy:
        objects = _proxy(options.namespace, image or f"zonewise:{own}", own, given)
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)
        return
    for flag, value in given.items():
        if value is not None:
            raise click.UsageError(f"{flag} is for --proxy")
    if not csi and (backend is not None or ceph_monitors is not None):
        raise click.UsageError("--backend and --ceph-monitors are for --csi")
    if csi:
        from zonewise.install.csi import EMBEDDED, NAMESPACE, CsiInstallation, render_csi

        monitors = tuple(one.strip() for one in (ceph_monitors or "").split(",") if one.strip())
        if bool(monitors) != ((backend or EMBEDDED) != EMBEDDED):
            raise click.UsageError(
                "--ceph-monitors belongs to --backend ceph-rbd and ceph-fs, which need it"
            )
        driver = CsiInstallation(
            image=image or f"zonewise:{own}",
            version=own,
            namespace=options.namespace or NAMESPACE,
            replicas=replicas,
            backend=backend or EMBEDDED,
            monitors=monitors,
        )
        objects = render_csi(driver)
        click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)
        return
    wanted = Installation(
        role=rollout.role,
        image=image or f"zonewise:{own}",
        version=own,
        namespace=namespace,
        replicas=replicas,
        arguments=rollout.flags + deciding.flags,
        namespaces_are_selected=rollout.namespaces != EVERYTHING,
        alerts=cast("Alerts", alerts),
        dashboard=dashboard,
        budgets=budgets,
        gated_users=gated_users,
        dns=dns,
        webhook_from=_callers("--webhook-from", webhook_from),
        metrics_from=_callers("--metrics-from", metrics_from),
        client_authority=_client_authority(webhook_client_ca),
    )
    objects = render_manifests(wanted)
    click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)


def _callers(flag: str, callers: tuple[str, ...]) -> tuple[str, ...]:
    """Networks and namespaces, or a sentence about the first that is neither."""
    from zonewise.api.values.names import label_errors
    from zonewise.install.workload import is_network

    for caller in callers:
        if not is_network(caller) and ("/" in caller or label_errors(caller)):
            raise click.UsageError(
                f"{flag} {caller[:100]!r} is neither a network nor a namespace; write it like"
                " 10.0.0.0/28 or monitoring"
            )
    return callers


def _client_authority(place: str | None) -> ClientAuthority | None:
    """The authority in a file, or the name of the ConfigMap that has it."""
    from cryptography.x509 import load_pem_x509_certificates

    from zonewise.api.values.names import subdomain_errors
    from zonewise.install.installation import ClientAuthority

    if place is None:
        return None
    kind, _, name = place.partition("/")
    if kind == "configmap":
        if subdomain_errors(name):
            raise click.UsageError(
                f"--webhook-client-ca {place[:100]!r} does not name a ConfigMap; write it like"
                " configmap/api-servers"
            )
        return ClientAuthority(config_map=name)
    try:
        text = Path(place).read_text("ascii")
        load_pem_x509_certificates(text.encode())
    except OSError as error:
        raise click.UsageError(
            f"--webhook-client-ca: {place} cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        raise click.UsageError(
            f"--webhook-client-ca: {place} has no certificate; give a file with PEM certificates"
        ) from None
    return ClientAuthority(certificates=text)


def _refuse_dropped(context: click.Context, *, proxy: bool, csi: bool) -> None:
    """What the chosen manifests have no place for is not left out in silence."""
    if not proxy and not csi:
        return
    dropped = [
        flag
        for name, flag in (OF_CONTROLLER | (NOT_OF_PROXY if proxy else {})).items()
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    ]
    if dropped:
        chosen = "--proxy" if proxy else "--csi"
        verb = "is" if len(dropped) == 1 else "are"
        raise click.UsageError(
            f"{', '.join(dropped)} {verb} not for {chosen}, which is installed on its own; run"
            f" install once without {chosen} and once with it alone"
        )


def _proxy(
    namespace: str | None, image: str, own: str, given: Mapping[str, str | None]
) -> list[dict[str, Any]]:
    """The manifests of the proxy, from flags that were given."""
    from zonewise.install.proxy import PROXY, ProxyInstallation, render_proxy
    from zonewise.proxy.configuration import cidrs
    from zonewise.runtime.serving.address import parse_listen

    server = given["--api-server"] or ""
    if given["--api-server"] is not None:
        host, port = parse_listen(server, "--api-server", API_SERVER)
        if not host or not port:
            raise ConfigError(f"--api-server {server} lacks a part; write it like {API_SERVER}")
    if given["--cluster-cidr"] is not None:
        cidrs("--cluster-cidr", given["--cluster-cidr"].split(","))
    arguments = tuple(
        f"{flag}={value}"
        for flag in ("--cluster-cidr", "--service-proxy-name")
        if (value := given[flag]) is not None
    )
    return render_proxy(
        ProxyInstallation(
            image=image,
            version=own,
            namespace=namespace or PROXY,
            api_server=server,
            arguments=arguments,
        )
    )
