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
from zonewise.cli.program.command import Command
from zonewise.cli.program.hint_options import (
    DecisionOptions,
    RolloutOptions,
    decision_options,
    rollout_options,
)
from zonewise.cli.program.options import Options, add_options, budgets_option

if TYPE_CHECKING:
    from zonewise.install.installation import BudgetsMode, ClientAuthority

API_SERVER = "10.0.0.1:6443"

IMAGE = re.compile(
    r"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?"
)
"""A reference to an image: an optional registry, a path, an optional tag and digest."""

OF_CONTROLLER = {
    "role": "--endpointslices",
    "service_selector": "--service-selector",
    "namespace_selector": "--namespace-selector",
    "missing_cpu": "--missing-cpu",
    "missing_zone": "--missing-zone",
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
    "domain_labels": "--domain-labels",
}

NOT_OF_CSI = {"feature_gates": "--feature-gates"}


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
@add_options(budgets_option())
@click.option(
    "--gated-user",
    "gated_users",
    metavar="NAME",
    multiple=True,
    help="Also refuse this user deletions of pods that budgets do not allow: the user of a workload"
    " controller which is not part of Kubernetes; may be repeated.",
)
@click.option(
    "--webhook-from",
    metavar="NETWORK|NAMESPACE",
    multiple=True,
    help="Who may call the webhook, for its NetworkPolicy: the networks of the API servers, or the"
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
    " ConfigMap with a key ca.crt; docs/install.md shows how to configure the API server.",
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
@click.option(
    "--dns", is_flag=True, help="Also a name server that prefers nearby endpoints: see docs/dns.md."
)
@click.option("--dashboard", is_flag=True, help="Also a Grafana dashboard, in a ConfigMap.")
@click.option("--proxy", is_flag=True, help="The proxy of every node instead of the controller.")
@click.option(
    "--csi", is_flag=True, help="The CSI driver with its sidecars instead of the controller."
)
@click.option(
    "--backend",
    type=click.Choice(["embedded", "ceph-rbd", "ceph-fs"]),
    metavar="embedded|ceph-rbd|ceph-fs",
    help="With --csi: where volumes are stored.  [default: embedded]",
)
@click.option(
    "--ceph-monitors",
    metavar="A:3300,B:3300",
    help="With --csi on Ceph: the cluster's monitors; its key is in the Secret csi-ceph. The"
    " ConfigMap csi has them; applied again, it resets pools and takeovers: see docs/csi.md.",
)
@click.option(
    "--domain-labels",
    metavar="A,B",
    help="With --csi: the node labels that name domains, the largest first: the segments of the"
    " driver's topology.  [default: topology.kubernetes.io/zone]",
)
@click.option("--cluster-cidr", metavar="A,B", help="With --proxy: the networks of pods.")
@click.option(
    "--service-proxy-name",
    metavar="NAME",
    help="With --proxy: only Services with this proxy's label, beside another proxy.",
)
@click.option(
    "--api-server",
    metavar="HOST:PORT",
    help="With --proxy: the address of the API server itself; needed unless another proxy serves"
    " its ClusterIP.",
)
@click.pass_obj
def command(
    options: Options,
    rollout: RolloutOptions,
    decision: DecisionOptions,
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
    domain_labels: str | None,
    cluster_cidr: str | None,
    service_proxy_name: str | None,
    api_server: str | None,
) -> None:
    """Print the manifests that run Zonewise on a cluster, to apply or to delete.

    Without --endpointslices and --budgets nothing is written but conditions and events on Services,
    and PodLocators. 'own' needs a controller manager that was started with
    --controllers=*,-endpointslice-controller. -n is the namespace to install into; it is created.
    See docs/install.md.
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
    given = {
        "--cluster-cidr": cluster_cidr,
        "--service-proxy-name": service_proxy_name,
        "--api-server": api_server,
    }
    if proxy and csi:
        raise click.UsageError("--proxy and --csi exclude each other; run install once for each")
    _refuse_ignored(click.get_current_context(), proxy=proxy, csi=csi)
    if gated_users and budgets == "off":
        raise click.UsageError(
            "--gated-user has no effect without --budgets; add --budgets enforce"
        )
    if "" in gated_users:
        raise click.UsageError("--gated-user is empty; give the name of a user")
    if image is not None and not IMAGE.fullmatch(image):
        raise click.UsageError(
            f"--image {image[:100]!r} is not the name of an image; write it like"
            " registry.example/zonewise:1.0"
        )
    for flag, value in given.items():
        if value is not None and not proxy:
            raise click.UsageError(f"{flag} is for --proxy; leave it out")
    if not csi and (backend, ceph_monitors, domain_labels) != (None, None, None):
        raise click.UsageError(
            "--backend, --ceph-monitors and --domain-labels are for --csi; leave them out"
        )
    release = version("zonewise")
    image = image or f"zonewise:{release}"
    if proxy:
        objects = _make_proxy(options.namespace, image, release, given, decision.gate_flags)
    elif csi:
        objects = _make_csi(
            options.namespace, image, release, replicas, backend, ceph_monitors, domain_labels
        )
    else:
        objects = render_manifests(
            Installation(
                role=rollout.role,
                image=image,
                version=release,
                namespace=namespace,
                replicas=replicas,
                arguments=rollout.flags + decision.flags,
                gate_flags=decision.gate_flags,
                namespaces_are_selected=rollout.namespaces != EVERYTHING,
                alerts=cast("Alerts", alerts),
                dashboard=dashboard,
                budgets=budgets,
                gated_users=gated_users,
                dns=dns,
                webhook_from=_check_callers("--webhook-from", webhook_from),
                metrics_from=_check_callers("--metrics-from", metrics_from),
                client_authority=_read_authority(webhook_client_ca),
            )
        )
    click.echo(yaml.safe_dump_all(objects, sort_keys=False, width=1000), nl=False)


def _check_callers(flag: str, callers: tuple[str, ...]) -> tuple[str, ...]:
    """The callers, if each of them is a network or a namespace."""
    from zonewise.api.values.names import label_errors
    from zonewise.install.workload import is_network

    for caller in callers:
        if not is_network(caller) and ("/" in caller or label_errors(caller)):
            raise click.UsageError(
                f"{flag} {caller[:100]!r} is neither a network nor a namespace; write it like"
                " 10.0.0.0/28 or monitoring"
            )
    return callers


def _read_authority(source: str | None) -> ClientAuthority | None:
    """The authority in a file, or the name of its ConfigMap."""
    from cryptography.x509 import load_pem_x509_certificates

    from zonewise.api.values.names import subdomain_errors
    from zonewise.install.installation import ClientAuthority

    if source is None:
        return None
    kind, _, name = source.partition("/")
    if kind == "configmap":
        if subdomain_errors(name):
            raise click.UsageError(
                f"--webhook-client-ca {source[:100]!r} does not name a ConfigMap; write it like"
                " configmap/api-servers"
            )
        return ClientAuthority(config_map=name)
    try:
        text = Path(source).read_text("ascii")
        load_pem_x509_certificates(text.encode())
    except OSError as error:
        raise click.UsageError(
            f"--webhook-client-ca: {source} cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        raise click.UsageError(
            f"--webhook-client-ca: {source} has no certificate; give a file with PEM certificates"
        ) from None
    return ClientAuthority(certificates=text)


def _refuse_ignored(context: click.Context, *, proxy: bool, csi: bool) -> None:
    """Refuse flags that the chosen manifests would ignore."""
    if not proxy and not csi:
        return
    others = NOT_OF_PROXY if proxy else NOT_OF_CSI
    ignored = [
        flag
        for name, flag in (OF_CONTROLLER | others).items()
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    ]
    if ignored:
        chosen = "--proxy" if proxy else "--csi"
        verb = "is" if len(ignored) == 1 else "are"
        raise click.UsageError(
            f"{', '.join(ignored)} {verb} not for {chosen}, which is installed on its own; run"
            f" install once without {chosen} and once with it alone"
        )


def _make_csi(
    namespace: str | None,
    image: str,
    release: str,
    replicas: int,
    backend: str | None,
    ceph_monitors: str | None,
    domain_labels: str | None,
) -> list[dict[str, Any]]:
    """The manifests of the CSI driver."""
    from zonewise.install.csi import DRIVER, EMBEDDED, NAMESPACE, CsiInstallation, render_csi
    from zonewise.storage.domains import build_domain_labels, split_domain_labels
    from zonewise.topology.nodes import ZONE_LABEL

    monitors = tuple(filter(None, map(str.strip, (ceph_monitors or "").split(","))))
    if bool(monitors) != ((backend or EMBEDDED) != EMBEDDED):
        raise click.UsageError(
            "--backend ceph-rbd and ceph-fs need --ceph-monitors, and embedded takes none"
        )
    labels: tuple[str, ...] = (ZONE_LABEL,)
    if domain_labels is not None:
        labels = tuple(split_domain_labels(domain_labels))
        build_domain_labels(labels, DRIVER)
    return render_csi(
        CsiInstallation(
            image=image,
            version=release,
            namespace=namespace or NAMESPACE,
            replicas=replicas,
            backend=backend or EMBEDDED,
            monitors=monitors,
            domain_labels=labels,
        )
    )


def _make_proxy(
    namespace: str | None,
    image: str,
    release: str,
    given: Mapping[str, str | None],
    gate_flags: tuple[str, ...],
) -> list[dict[str, Any]]:
    """The manifests of the proxy."""
    from zonewise.install.proxy import PROXY, ProxyInstallation, render_proxy
    from zonewise.proxy.configuration import cidrs
    from zonewise.runtime.serving.address import parse_listen

    server = given["--api-server"] or ""
    if given["--api-server"] is not None:
        host, port = parse_listen(server, "--api-server", API_SERVER)
        if not host or not port:
            raise ConfigError(
                f"--api-server {server} needs a host and a port above 0; write it like {API_SERVER}"
            )
    if given["--cluster-cidr"] is not None:
        cidrs("--cluster-cidr", given["--cluster-cidr"].split(","))
    flags = ("--cluster-cidr", "--service-proxy-name")
    return render_proxy(
        ProxyInstallation(
            image=image,
            version=release,
            namespace=namespace or PROXY,
            api_server=server,
            arguments=(
                *(f"{flag}={given[flag]}" for flag in flags if given[flag] is not None),
                *gate_flags,
            ),
        )
    )
