"""The records of Kubernetes' DNS specification, one by one, and CoreDNS's additions."""

from __future__ import annotations

import dns.flags
import dns.rcode
import dns.reversename
import pytest
from tests.dns.clusters import (
    Names,
    code_of,
    endpoint,
    headless,
    namespace,
    pieces,
    port,
    service,
    texts,
)

from zonewise.dns.outside.upstream_cache import OutsideAnswer
from zonewise.dns.wire import Question, Rcode

SVC = "shop.svc.cluster.local."


def names() -> Names:
    """A small cluster with one Service of each kind."""
    cluster = Names()
    cluster.put(
        namespace("shop"),
        namespace("empty"),
        service(
            "web",
            clusterIP="10.96.0.7",
            clusterIPs=["10.96.0.7", "fd00:96::7"],
            ports=[port("http", 80), port("dns", 53, "UDP")],
        ),
        pieces("web", [endpoint("10.0.0.1"), endpoint("10.0.0.2", hostname="second")]),
        headless("db", ports=[port("sql", 5432)]),
        pieces(
            "db",
            [
                endpoint("10.0.1.1", hostname="db-0", zone="zone-A.1"),
                endpoint("10.0.1.2", zone="zone-b"),
                endpoint("10.0.1.3", ready=False),
            ],
            ports=[port("sql", 5432)],
        ),
        pieces(
            "db",
            [endpoint("fd00::1", hostname="db-0"), endpoint("fd00::2"), endpoint("fd00:1::")],
            family="IPv6",
            ports=[port("sql", 5432)],
        ),
        headless("portless", ports=[]),
        pieces("portless", [endpoint("10.0.2.1")], ports=[]),
        headless("asleep"),
        pieces("asleep", [endpoint("10.0.3.1", ready=False)]),
        service("out", type="ExternalName", externalName="example.com"),
    )
    for name, space, ips in (
        ("p", "shop", ["10.0.0.1", "fd00::a:1"]),
        ("q", "other", ["10.0.0.9"]),
    ):
        cluster.put(
            {
                "kind": "PodLocator",
                "metadata": {"name": name, "namespace": space, "uid": name},
                "ips": [{"ip": ip} for ip in ips],
            }
        )
    return cluster


def test_the_schema_version_is_a_text_record() -> None:
    """2.2: dns-version says which version of the specification is followed."""
    answer = names().ask("dns-version.cluster.local", "TXT")
    assert texts(answer) == ['"1.1.0"']
    assert answer.answer[0].ttl == 28800


def test_a_cluster_ip_has_addresses_of_each_family() -> None:
    """2.3.1: A and AAAA of a Service are its cluster IPs, with a short time to live."""
    cluster = names()
    answer = cluster.ask(f"web.{SVC}")
    assert texts(answer) == ["10.96.0.7"]
    assert answer.answer[0].ttl == 5
    assert answer.flags & dns.flags.AA
    assert cluster.addresses(f"web.{SVC}", kind="AAAA") == ["fd00:96::7"]


def test_each_named_port_has_a_service_record() -> None:
    """2.3.2: SRV of a port leads to the Service's own name, with its addresses beside."""
    cluster = names()
    answer = cluster.ask(f"_http._tcp.web.{SVC}", "SRV")
    assert texts(answer) == [f"0 50 80 web.{SVC}"]
    assert texts(answer, "additional") == ["10.96.0.7", "fd00:96::7"]
    assert texts(cluster.ask(f"_dns._udp.web.{SVC}", "SRV")) == [f"0 50 53 web.{SVC}"]
    assert cluster.code(f"_http._udp.web.{SVC}", "SRV") == "NXDOMAIN"
    assert texts(cluster.ask(f"web.{SVC}", "SRV")) == [f"0 25 53 web.{SVC}", f"0 25 80 web.{SVC}"]
    assert cluster.addresses(f"_http._tcp.web.{SVC}") == ["10.96.0.7"]


def test_a_cluster_ip_has_a_name() -> None:
    """2.3.3: PTR of a cluster IP is its Service."""
    for address in ("10.96.0.7", "fd00:96::7"):
        answer = names().ask(dns.reversename.from_address(address).to_text(), "PTR")
        assert texts(answer) == [f"web.{SVC}"]
        assert answer.flags & dns.flags.AA


def test_a_headless_service_is_its_ready_endpoints() -> None:
    """2.4.1: A and AAAA of a headless Service are the addresses of ready endpoints."""
    cluster = names()
    assert cluster.addresses(f"db.{SVC}") == ["10.0.1.1", "10.0.1.2"]
    assert cluster.addresses(f"db.{SVC}", kind="AAAA") == ["fd00:1::", "fd00::1", "fd00::2"]
    assert cluster.code(f"asleep.{SVC}") == "NXDOMAIN"


def test_endpoints_have_names_of_their_own() -> None:
    """The hostname, else the address with dashes (a 0 after a dash at the end); never both."""
    cluster = names()
    assert cluster.addresses(f"db-0.db.{SVC}") == ["10.0.1.1"]
    assert cluster.addresses(f"db-0.db.{SVC}", kind="AAAA") == ["fd00::1"]
    assert cluster.addresses(f"10-0-1-2.db.{SVC}") == ["10.0.1.2"]
    assert cluster.addresses(f"fd00--2.db.{SVC}", kind="AAAA") == ["fd00::2"]
    assert cluster.addresses(f"fd00-1--0.db.{SVC}", kind="AAAA") == ["fd00:1::"]
    assert cluster.code(f"10-0-1-1.db.{SVC}") == "NXDOMAIN"
    assert cluster.code(f"10-0-1-3.db.{SVC}") == "NXDOMAIN"
    assert cluster.code(f"10-0-1-2.db.{SVC}", "AAAA") == "NODATA"
    assert cluster.addresses(f"10-0-0-1.web.{SVC}") == ["10.0.0.1"]
    assert cluster.addresses(f"second.web.{SVC}") == ["10.0.0.2"]


def test_headless_ports_have_service_records_for_each_endpoint() -> None:
    """2.4.2: SRV of a headless Service names each endpoint once; addresses are additional."""
    cluster = names()
    answer = cluster.ask(f"_sql._tcp.db.{SVC}", "SRV")
    assert texts(answer) == sorted(
        f"0 20 5432 {host}.db.{SVC}" for host in ("db-0", "10-0-1-2", "fd00--2", "fd00-1--0")
    )
    glue = ["10.0.1.1", "10.0.1.2", "fd00:1::", "fd00::1", "fd00::2"]
    assert texts(answer, "additional") == glue
    single = cluster.ask(f"db-0.db.{SVC}", "SRV")
    assert texts(single) == [f"0 50 5432 db-0.db.{SVC}"]
    assert texts(single, "additional") == ["10.0.1.1", "fd00::1"]
    assert cluster.code(f"portless.{SVC}", "SRV") == "NODATA"
    assert cluster.addresses(f"portless.{SVC}") == ["10.0.2.1"]


def test_endpoints_have_reverse_names_in_every_service() -> None:
    """2.4.3: PTR of an endpoint is its name; an endpoint of several Services has several."""
    cluster = names()
    assert texts(cluster.ask("1.1.0.10.in-addr.arpa", "PTR")) == [f"db-0.db.{SVC}"]
    cluster.put(headless("also"), pieces("also", [endpoint("10.0.0.1", hostname="me")]))
    assert texts(cluster.ask("1.0.0.10.in-addr.arpa", "PTR")) == sorted(
        [f"10-0-0-1.web.{SVC}", f"me.also.{SVC}"]
    )


def test_an_external_name_is_an_alias() -> None:
    """2.5: CNAME; other types are NODATA if the alias leads nowhere, and there are no ports."""
    cluster = names()
    answer = cluster.ask(f"out.{SVC}", "CNAME")
    assert texts(answer) == ["example.com."]
    assert answer.flags & dns.flags.AA
    for kind in ("TXT", "SRV", "MX"):
        assert cluster.code(f"out.{SVC}", kind) == "NODATA"
    assert cluster.code(f"_http._tcp.out.{SVC}", "SRV") == "NXDOMAIN"
    assert cluster.code(f"x.out.{SVC}") == "NXDOMAIN"


def test_pods_that_exist_have_names() -> None:
    """A pod is found by its address, in its own namespace only."""
    cluster = names()
    assert cluster.addresses("10-0-0-1.shop.pod.cluster.local") == ["10.0.0.1"]
    assert cluster.addresses("fd00--a-1.shop.pod.cluster.local", kind="AAAA") == ["fd00::a:1"]
    assert cluster.code("10-0-0-1.shop.pod.cluster.local", "AAAA") == "NODATA"
    assert cluster.code("10-0-0-2.shop.pod.cluster.local") == "NXDOMAIN"
    assert cluster.code("10-0-0-9.shop.pod.cluster.local") == "NXDOMAIN"
    assert cluster.code("10-0-0-9.other.pod.cluster.local") == "NXDOMAIN"
    assert cluster.code("nonsense.shop.pod.cluster.local") == "NXDOMAIN"


@pytest.mark.parametrize("kind", ["A", "AAAA", "TXT", "SRV", "MX", "ANY", "CNAME", "HTTPS"])
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("cluster.local", "NODATA"),
        ("svc.cluster.local", "NODATA"),
        ("pod.cluster.local", "NODATA"),
        ("shop.svc.cluster.local", "NODATA"),
        ("empty.pod.cluster.local", "NODATA"),
        ("gone.svc.cluster.local", "NXDOMAIN"),
        ("web.gone.svc.cluster.local", "NXDOMAIN"),
        ("*.shop.svc.cluster.local", "NXDOMAIN"),
        ("web.*.svc.cluster.local", "NXDOMAIN"),
        ("shop.cluster.local", "NXDOMAIN"),
        ("web.shop.cluster.local", "NXDOMAIN"),
        ("a.b.c.web.shop.svc.cluster.local", "NXDOMAIN"),
        ("google.com.shop.svc.cluster.local", "NXDOMAIN"),
    ],
)
def test_names_without_records(name: str, code: str, kind: str) -> None:
    """The domain and namespaces exist without records; names that do not exist are NXDOMAIN."""
    assert names().code(name, kind) == code


def test_zones_can_be_named() -> None:
    """`pin` answers a zone's endpoints or nothing, `prefer` all if the zone has none."""
    cluster = names()
    assert cluster.addresses(f"zone-A.1.pin._zone.db.{SVC}") == ["10.0.1.1"]
    assert cluster.addresses(f"ZONE-B.prefer._zone.db.{SVC}") == ["10.0.1.2"]
    everybody = ["10.0.1.1", "10.0.1.2"]
    assert cluster.addresses(f"zone-x.prefer._zone.db.{SVC}") == everybody
    assert cluster.code(f"zone-x.pin._zone.db.{SVC}") == "NODATA"
    assert cluster.code(f"zone-x.pin._zone.db.{SVC}", "TXT") == "NODATA"
    assert cluster.code(f"zone-b.pin._zone.asleep.{SVC}") == "NODATA"
    assert cluster.code(f"zone-b.pin._zone.web.{SVC}") == "NXDOMAIN"
    assert cluster.code(f"zone-b.pin._zone.nobody.{SVC}") == "NXDOMAIN"
    assert cluster.code(f"zone-b.near._zone.db.{SVC}") == "NXDOMAIN"
    srv = cluster.ask(f"zone-b.pin._zone.db.{SVC}", "SRV")
    assert texts(srv) == [f"0 100 5432 10-0-1-2.db.{SVC}"]
    assert texts(srv, "additional") == ["10.0.1.2"]


def test_the_domain_has_soa_and_ns() -> None:
    """The apex has a SOA record and, where the server has an address, a name server."""
    cluster = names()
    soa = texts(cluster.ask("cluster.local", "SOA"))
    assert soa == ["ns.dns.cluster.local. hostmaster.cluster.local. 7 7200 1800 86400 5"]
    assert cluster.code("cluster.local", "NS") == "NODATA"
    own = Names(addresses=("10.0.9.9",))
    assert texts(own.ask("cluster.local", "NS")) == ["ns.dns.cluster.local."]
    assert own.addresses("ns.dns.cluster.local") == ["10.0.9.9"]
    own.put(
        namespace("kube-system"),
        service("kube-dns", "kube-system", clusterIP="10.96.0.10", ports=[port("dns", 53)]),
        pieces("kube-dns", [endpoint("10.0.9.9")], "kube-system"),
    )
    answer = own.ask("cluster.local", "NS")
    assert texts(answer) == ["kube-dns.kube-system.svc.cluster.local."]
    assert texts(answer, "additional") == ["10.96.0.10"]


def test_several_domains_are_the_same_cluster() -> None:
    """Every domain has the names; PTR records lead to the first."""
    cluster = Names(domains=("cluster.local", "corp.example"))
    cluster.put(namespace("shop"), service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]))
    assert cluster.addresses("web.shop.svc.corp.example") == ["10.96.0.7"]
    assert cluster.addresses(f"web.{SVC}") == ["10.96.0.7"]
    srv = cluster.ask("web.shop.svc.corp.example", "SRV")
    assert texts(srv) == ["0 100 80 web.shop.svc.corp.example."]
    assert texts(cluster.ask("7.0.96.10.in-addr.arpa", "PTR")) == [f"web.{SVC}"]


def test_aliases_are_followed_inside_of_the_cluster() -> None:
    """An alias and its end are one answer, the alias first; one that leads nowhere is NODATA."""
    cluster = names()
    cluster.put(
        service("one", type="ExternalName", externalName=f"two.{SVC}"),
        service("two", type="ExternalName", externalName=f"DB.{SVC}"),
        service("self", type="ExternalName", externalName=f"self.{SVC}"),
        service("ping", type="ExternalName", externalName=f"pong.{SVC}"),
        service("pong", type="ExternalName", externalName=f"ping.{SVC}"),
        service("lost", type="ExternalName", externalName=f"nobody.{SVC}"),
        service("number", type="ExternalName", externalName="192.0.2.1"),
    )
    answer = cluster.ask(f"one.{SVC}")
    assert [str(records) for records in answer.answer][:2] == [
        f"one.{SVC} 5 IN CNAME two.{SVC}",
        f"two.{SVC} 5 IN CNAME DB.{SVC}",
    ]
    assert sorted(str(record) for record in answer.answer[2]) == ["10.0.1.1", "10.0.1.2"]
    for name in ("self", "ping", "lost"):
        assert cluster.code(f"{name}.{SVC}") == "NODATA"
    assert cluster.code(f"number.{SVC}") == "NXDOMAIN"


@pytest.mark.parametrize(("aliases", "code"), [(11, "NOERROR"), (12, "NODATA")])
def test_chains_of_aliases_end(aliases: int, code: str) -> None:
    """After the first alias at most ten more steps are taken."""
    cluster = names()
    for step in range(aliases):
        end = f"c{step + 1}.{SVC}" if step + 1 < aliases else f"web.{SVC}"
        cluster.put(service(f"c{step}", type="ExternalName", externalName=end))
    answer = cluster.ask(f"c0.{SVC}")
    assert code_of(answer) == code
    assert len(answer.answer) == (aliases + 1 if code == "NOERROR" else 0)


def test_answers_follow_every_change() -> None:
    """A cached answer is dropped by a change of an object it was made from, and by no other."""
    cluster = names()
    assert cluster.addresses(f"db.{SVC}") == ["10.0.1.1", "10.0.1.2"]
    assert cluster.code(f"new.{SVC}") == "NXDOMAIN"
    assert cluster.code("web.late.svc.cluster.local") == "NXDOMAIN"
    assert texts(cluster.ask("1.1.0.10.in-addr.arpa", "PTR")) == [f"db-0.db.{SVC}"]
    assert cluster.addresses(f"web.{SVC}") == ["10.96.0.7"]
    cached = len(cluster.responder.cache.table)
    ports = [port("sql", 5432)]
    cluster.put(pieces("db", [endpoint("10.0.1.1", hostname="x")], ports=ports))
    assert len(cluster.responder.cache.table) == cached - 2
    assert cluster.addresses(f"db.{SVC}") == ["10.0.1.1"]
    assert texts(cluster.ask("1.1.0.10.in-addr.arpa", "PTR")) == [f"x.db.{SVC}"]
    cluster.put(service("new", clusterIP="10.96.0.8", ports=[port("http", 80)]))
    assert cluster.addresses(f"new.{SVC}") == ["10.96.0.8"]
    cluster.put(namespace("late"), service("web", "late", clusterIP="10.96.0.9", ports=ports))
    assert cluster.addresses("web.late.svc.cluster.local") == ["10.96.0.9"]
    cluster.remove("EndpointSlice", "db-ipv4", "shop")
    assert cluster.code(f"db.{SVC}") == "NODATA"
    cluster.remove("EndpointSlice", "db-ipv6", "shop")
    assert cluster.code(f"db.{SVC}") == "NXDOMAIN"
    cluster.remove("Service", "new", "shop")
    assert cluster.code(f"new.{SVC}") == "NXDOMAIN"
    cluster.remove("Namespace", "late")
    assert cluster.code("web.late.svc.cluster.local") == "NXDOMAIN"


def test_before_the_first_lists_nothing_is_denied() -> None:
    """A server whose cache is not filled yet answers SERVFAIL, for names and reverse names."""
    cluster = names()
    cluster.synced = False
    for name, kind in ((f"web.{SVC}", "A"), (f"nobody.{SVC}", "A"), ("1.in-addr.arpa", "PTR")):
        answer = cluster.ask(name, kind)
        assert answer.rcode() == 2
        assert not answer.authority


def test_records_take_turns() -> None:
    """The first address of an answer is another one each time."""
    cluster = names()
    firsts = {str(cluster.ask(f"db.{SVC}").answer[0][0]) for _ in range(4)}
    assert firsts == {"10.0.1.1", "10.0.1.2"}


def test_the_name_of_a_pod_ends_when_its_deletion_begins() -> None:
    """A pod that is being deleted, or is Unknown, has a location but no name."""
    cluster = Names()
    meta = {"name": "p", "namespace": "shop", "uid": "p"}
    status = {"phase": "Running", "podIPs": [{"ip": "10.0.5.1"}, {"ip": "fd00:5::1"}]}
    pod = {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "n"}, "status": status}
    node = {"kind": "Node", "metadata": {"name": "n"}}
    cluster.put(namespace("shop"), node, pod)
    name = "10-0-5-1.shop.pod.cluster.local"
    assert cluster.addresses(name) == ["10.0.5.1"]
    cluster.put({**pod, "metadata": {**meta, "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert cluster.code(name) == "NXDOMAIN"
    assert cluster.code("fd00-5--1.shop.pod.cluster.local", "AAAA") == "NXDOMAIN"
    assert cluster.locators.locate("10.0.5.1").node == "n"
    cluster.put({**pod, "status": {**status, "phase": "Unknown"}})
    assert cluster.code(name) == "NXDOMAIN"
    cluster.put(pod)
    assert cluster.addresses(name) == ["10.0.5.1"]


class Elsewhere:
    """Upstream servers that deny every name."""

    def is_own_probe(self, question: Question) -> bool:
        return False

    async def look_up(self, question: Question, source: str) -> OutsideAnswer:
        return OutsideAnswer.failed(question, Rcode.NXDOMAIN)


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("in-addr.arpa", "A", "NODATA"),
        ("9.9.9.10.in-addr.arpa", "SOA", "NODATA"),
        ("9.10.in-addr.arpa", "SOA", "NODATA"),
        ("ns.dns.ip6.arpa", "A", "NODATA"),
        ("ns.dns.ip6.arpa", "PTR", "forwarded"),
        ("ns.dns.cluster.local", "MX", "NODATA"),
        ("ns.dns.cluster.local", "PTR", "NXDOMAIN"),
        ("9.9.9.10.in-addr.arpa", "PTR", "forwarded"),
        ("7.0.96.10.in-addr.arpa", "TXT", "forwarded"),
        ("ip6.arpa", "TXT", "forwarded"),
        ("svc.in-addr.arpa", "A", "forwarded"),
    ],
)
def test_which_questions_about_reverse_domains_are_answered_here(
    name: str, kind: str, code: str
) -> None:
    """Reverse names without an address of the cluster are forwarded, but for SOA and our own."""
    cluster = Names(forwards=Elsewhere())
    cluster.put(namespace("shop"), service("web", clusterIP="10.96.0.7", ports=[port("http", 80)]))
    answer = cluster.ask(name, kind)
    if code == "forwarded":
        assert answer.rcode() == dns.rcode.NXDOMAIN
        assert not answer.flags & dns.flags.AA
    else:
        assert code_of(answer) == code


def test_an_address_that_a_slice_lists_twice_is_in_the_zone_listed_last() -> None:
    """As for CoreDNS, which keeps one zone for each address of a slice."""
    cluster = names()
    rows = [endpoint("10.0.6.1", zone="a"), endpoint("10.0.6.1", zone="b", hostname="x")]
    cluster.put(headless("twice"), pieces("twice", rows))
    assert cluster.code(f"a.pin._zone.twice.{SVC}") == "NODATA"
    assert cluster.addresses(f"b.pin._zone.twice.{SVC}") == ["10.0.6.1"]


def test_irrelevant_changes_drop_no_cached_answer() -> None:
    """An annotation of a slice or the status of a Service changes no answer."""
    cluster = names()
    web = service("new", clusterIP="10.96.0.8", ports=[port("http", 80)])
    piece = pieces("db", [endpoint("10.0.1.1")], ports=[port("sql", 5432)])
    cluster.put(web, piece)
    for name in (f"db.{SVC}", f"new.{SVC}"):
        cluster.ask(name)
    cached, dropped = len(cluster.responder.cache.table), cluster.responder.cache.dropped
    note = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}
    cluster.put({**piece, "metadata": {**piece["metadata"], "annotations": note}})
    cluster.put(
        {**web, "status": {"conditions": [{"type": "zonewise.io/Hints", "status": "True"}]}}
    )
    assert (len(cluster.responder.cache.table), cluster.responder.cache.dropped) == (
        cached,
        dropped,
    )
    cluster.remove("EndpointSlice", "db-ipv4", "shop")
    cluster.remove("EndpointSlice", "db-ipv6", "shop")
    assert cluster.code(f"db.{SVC}") == "NXDOMAIN"
