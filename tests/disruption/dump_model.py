"""A third implementation of the rules on budgets: on whole dumps, rule by rule, and slow.

``model.py`` knows numbers only. This one also finds them: which pods a budget selects, who owns
them, how many their owners ask for, where they run, which are outdated or granted, and what several
budgets of both kinds say together. It shares no code with ``zonewise`` or ``model.py``; objects are
plain dictionaries.
"""

from __future__ import annotations

from math import ceil
from typing import Any

Item = dict[str, Any]
Row = dict[str, Any]

ELSEWHERE = None
"""The domain of pods on nodes that are not selected."""

ALIASES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}


class Dump:
    """The objects of a dump by kind; ``now`` is what grants are measured against."""

    def __init__(self, items: list[Item], now: float, moment: dict[str, float]) -> None:
        self.kinds: dict[str, list[Item]] = {}
        for item in items:
            self.kinds.setdefault(item["kind"], []).append(item)
        self.items = items
        self.nodes = {node["metadata"]["name"]: node for node in self.kinds.get("Node", [])}
        self.pods = self.kinds.get("Pod", [])
        self.granted = {
            grant["uid"]
            for ledger in self.kinds.get("DisruptionLedger", [])
            for grant in ledger["spec"]["grants"]
            if now - moment[grant["time"]] <= 120
        }

    def budgets(self) -> list[Item]:
        """Budgets of both kinds."""
        both = ("PodDisruptionBudget", "TopologyDisruptionBudget")
        return [item for kind in both for item in self.kinds.get(kind, [])]

    def owner(self, item: Item) -> tuple[bool, Item | None]:
        """Whether an object has a controller, and the controller if it is in the dump."""
        for reference in item["metadata"].get("ownerReferences", []):
            if reference.get("controller"):
                for candidate in self.items:
                    same = candidate["kind"] == reference["kind"]
                    if same and candidate["metadata"]["name"] == reference["name"]:
                        return True, candidate
                return True, None
        return False, None


def is_plain(budget: Item) -> bool:
    """Whether Kubernetes itself counts a budget."""
    return budget["kind"] == "PodDisruptionBudget" and "nodeSelectorTerm" not in budget["spec"]


def selects(budget: Item, pod: Item) -> bool:
    """Whether a budget's selector matches a pod's labels."""
    labels = pod["metadata"].get("labels", {})
    selector = budget["spec"]["selector"]
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(holds(expression, labels) for expression in selector.get("matchExpressions", []))


def holds(expression: Item, labels: dict[str, str]) -> bool:
    """One expression of a selector, of labels or of nodes."""
    key, operator = expression["key"], expression["operator"]
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    if operator == "In":
        return labels.get(key) in expression["values"]
    assert operator == "NotIn"
    return labels.get(key) not in expression["values"]


def new_keys(labels: dict[str, str]) -> dict[str, str]:
    """Labels under the newer names of their keys."""
    return {ALIASES.get(key, key): value for key, value in labels.items()}


class Term:
    """The meaning of a budget's term and topology keys."""

    def __init__(self, spec: Item) -> None:
        term = spec.get("nodeSelectorTerm")
        self.nothing = term is not None and not term.get("matchExpressions")
        expressions = [] if term is None else term.get("matchExpressions", [])
        expressions = [
            {**expression, "key": ALIASES.get(expression["key"], expression["key"])}
            for expression in expressions
        ]
        keys = [ALIASES.get(key, key) for key in spec.get("topologyKeys", [])]
        if not keys:
            keys = [
                expression["key"]
                for expression in expressions
                if expression["operator"] == "Exists"
            ]
        self.keys = list(dict.fromkeys(keys))
        self.guards = [expression for expression in expressions if expression["key"] in self.keys]
        self.looks = [
            expression for expression in expressions if expression["key"] not in self.keys
        ]

    def domain(self, labels: dict[str, str]) -> str | None:
        """The name of a node's domain."""
        labels = new_keys(labels)
        if self.nothing or not all(holds(expression, labels) for expression in self.looks):
            return ELSEWHERE
        if not self.keys:
            return "*"
        if any(key not in labels for key in self.keys):
            return ELSEWHERE
        return "/".join(labels[key] for key in self.keys)

    def guarded(self, domain: str | None) -> bool:
        """Whether the budget guards a domain."""
        if domain is ELSEWHERE:
            return False
        if not self.keys:
            return True
        values = dict(zip(self.keys, domain.split("/"), strict=True))
        return all(holds(expression, values) for expression in self.guards)


def gone(pod: Item) -> bool:
    """Finished or terminating."""
    leaving = "deletionTimestamp" in pod["metadata"]
    return leaving or pod["status"]["phase"] in ("Succeeded", "Failed")


def is_present(pod: Item) -> bool:
    """Scheduled, not terminal, not terminating."""
    return "nodeName" in pod["spec"] and not gone(pod)


def is_ready(pod: Item) -> bool:
    """Its condition Ready is True."""
    conditions = pod["status"].get("conditions", [])
    return any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )


def could_run(spec: Item, node: Item) -> bool:
    """Whether a pod with this spec could be put on a node."""
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        return False
    tolerated = {toleration["key"] for toleration in spec.get("tolerations", [])}
    return all(taint["key"] in tolerated for taint in node.get("spec", {}).get("taints", []))


def outdated(dump: Dump, pod: Item) -> bool:
    """Whether its owner would create it differently now."""
    _, owner = dump.owner(pod)
    if owner is None:
        return False
    labels = pod["metadata"].get("labels", {})
    if owner["kind"] == "StatefulSet":
        return bool(owner["status"]["updateRevision"] != labels["controller-revision-hash"])
    if owner["kind"] == "DaemonSet":
        made_of = owner["metadata"]["annotations"]["deprecated.daemonset.template.generation"]
        return bool(made_of != labels["pod-template-generation"])
    if owner["kind"] == "ReplicaSet":
        has, above = dump.owner(owner)
        if not has or above is None:
            return False
        siblings = [
            candidate for candidate in dump.kinds["ReplicaSet"] if dump.owner(candidate)[1] is above
        ]
        return revision(owner) < max(revision(sibling) for sibling in siblings)
    return False


def revision(replica_set: Item) -> int:
    """The revision that its controller gave it."""
    annotations = replica_set["metadata"].get("annotations", {})
    return int(next(value for key, value in annotations.items() if key.endswith("/revision")))


class Count:
    """The numbers of a budget."""

    def __init__(self, dump: Dump, budget: Item) -> None:
        self.dump, self.budget = dump, budget
        self.spec = budget["spec"]
        self.term = Term(self.spec)
        self.covered = [pod for pod in dump.pods if selects(budget, pod)]
        self.replicas: int | None = 0
        self.daemons: list[Item] = []
        self._ask()
        self._expect()

    def _ask(self) -> None:
        """Rule 1: how many pods the owners ask for."""
        seen: list[Item] = []
        total, unknown = 0, False
        for pod in self.covered:
            has, owner = self.dump.owner(pod)
            if owner is not None and owner["kind"] == "ReplicaSet":
                above_has, above = self.dump.owner(owner)
                if above_has and above is None:
                    owner = None
                elif above is not None and "replicas" in above["spec"]:
                    owner = above
            if has and owner is None:
                unknown = unknown or not gone(pod)
            elif owner is None or (
                owner["kind"] != "DaemonSet" and "replicas" not in owner.get("spec", {})
            ):
                total += not gone(pod)
            elif owner not in seen:
                seen.append(owner)
                if owner["kind"] == "DaemonSet":
                    self.daemons.append(owner)
                else:
                    total += owner["spec"]["replicas"]
        self.requested = total
        self.unknown = unknown

    def domain_of(self, pod: Item) -> str | None:
        """The domain of a pod: its node's, or that of its own labels once the node is gone."""
        node = self.dump.nodes.get(pod["spec"].get("nodeName", ""))
        return self.term.domain((node or pod)["metadata"].get("labels", {}))

    def is_daemons(self, pod: Item) -> bool:
        """Whether a DaemonSet owns the pod."""
        references = pod["metadata"].get("ownerReferences", [])
        return any(reference["kind"] == "DaemonSet" for reference in references)

    def _expect(self) -> None:
        """Rules 2 to 5 and 8."""
        dump, there = self.dump, [pod for pod in self.covered if is_present(pod)]
        every = [(self.domain_of(pod), pod) for pod in there]
        self.present = tally(domain for domain, _ in every)
        present = tally(domain for domain, pod in every if not self.is_daemons(pod))
        self.healthy = tally(
            domain
            for domain, pod in every
            if is_ready(pod) and pod["metadata"]["uid"] not in dump.granted
        )
        self.old = tally(
            domain
            for domain, pod in every
            if is_ready(pod) and pod["metadata"]["uid"] not in dump.granted and outdated(dump, pod)
        )
        eligible = tally(
            self.term.domain(node["metadata"].get("labels", {}))
            for daemon in self.daemons
            for node in dump.nodes.values()
            if could_run(daemon["spec"]["template"]["spec"], node)
        )
        rows = self.budget.get("status", {}).get("domains", [])
        known = {row["domain"]: row["expectedPods"] for row in rows} if rows else dict(present)
        if self.daemons and not self.requested and not present:
            known = {}
        wants = [pod["spec"] for pod in self.covered if not gone(pod) and not self.is_daemons(pod)]
        wants += [daemon["spec"]["template"]["spec"] for daemon in self.daemons]
        names: set[str | None] = {
            self.term.domain(node["metadata"].get("labels", {}))
            for node in dump.nodes.values()
            if not wants or any(could_run(spec, node) for spec in wants)
        } - {ELSEWHERE}
        if not self.term.keys and not self.term.nothing:
            names.add("*")
        names |= set(self.present) | set(eligible) | {key for key, n in known.items() if n}
        self.names = sorted(names, key=lambda name: name or "")
        share = self._shares(known)
        fitted = {name: known.get(name, 0) for name in self.names}
        while sum(fitted.values()) != self.requested and self.names:
            lacks = sum(fitted.values()) < self.requested
            sign = 1 if lacks else -1
            name = max(self.names, key=lambda domain: sign * (share[domain] - fitted[domain]))
            fitted[name] += sign
        surplus = max(0, sum(present.values()) - self.requested)
        self.expected = {
            name: max(fitted[name], present.get(name, 0) - surplus) + eligible.get(name, 0)
            for name in self.names
        }
        if self.spec.get("expectedPods") == "ReplicasPerDomain":
            self.expected = {name: share[name] + eligible.get(name, 0) for name in self.names}
        self.replicas = None if self.unknown else self.requested + sum(eligible.values())

    def _shares(self, known: dict[str | None, int]) -> dict[str | None, int]:
        if not self.names:
            return {}
        each, rest = divmod(self.requested, len(self.names))
        order = sorted(self.names, key=lambda name: -known.get(name, 0))
        return {name: each + (name in order[:rest]) for name in self.names}

    def shut(self, name: str | None) -> bool:
        """Rule 7: whether no pod may be unavailable."""
        limit = self.spec.get("maxUnavailable")
        if isinstance(limit, str):
            return ceil(int(limit[:-1]) * self.expected[name] / 100) == 0
        return bool(limit == 0)

    def desired(self, name: str | None) -> int:
        """Rule 5."""
        limit = self.spec.get("maxUnavailable", self.spec.get("minAvailable"))
        amount = limit
        if isinstance(limit, str):
            amount = ceil(int(limit[:-1]) * self.expected[name] / 100)
        if "maxUnavailable" in self.spec:
            return max(0, self.expected[name] - int(amount))
        return int(amount)

    def allowed(self, name: str | None) -> int | None:
        """Rule 5, and what other domains and unknown owners forbid."""
        if not self.term.guarded(name):
            return None
        others = [other for other in self.names if other != name]
        short = any(self.healthy.get(domain, 0) < self.expected[domain] for domain in others)
        if self.unknown or (self.spec.get("crossDomain") == "Exclusive" and short):
            return 0
        return max(0, self.healthy.get(name, 0) - self.needed(name))

    def needed(self, name: str | None) -> int:
        """Rule 5: pods beyond the expected ones are not held."""
        return min(self.desired(name), self.expected[name])

    def row(self) -> Row:
        """The expected row of ``explain budgets``."""
        return {
            "budget": self.budget["metadata"]["name"],
            "kind": self.budget["kind"],
            "replicas": self.replicas,
            "uncovered": self.present.get(ELSEWHERE, 0),
            "domains": [
                {
                    "domain": name,
                    "guarded": self.term.guarded(name),
                    "present": self.present.get(name, 0),
                    "expectedPods": self.expected[name],
                    "desiredHealthy": self.desired(name),
                    "currentHealthy": self.healthy.get(name, 0),
                    "disruptionsAllowed": self.allowed(name),
                }
                for name in self.names
                if name is not ELSEWHERE
            ],
        }

    def agrees(self, pod: Item) -> bool | None:
        """Whether a pod may be evicted; None if the budget does not guard it."""
        if self.spec.get("mode") == "Observe":
            return None
        name = self.domain_of(pod)
        if not self.term.guarded(name):
            return None
        always = self.spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow"
        if self.unknown:
            return always and not is_ready(pod)
        enough = self.old.get(name, 0) > self.expected[name]
        if self.shut(name) and outdated(self.dump, pod) and not enough:
            return False
        if is_ready(pod):
            return bool(self.allowed(name))
        return always or self.healthy.get(name, 0) >= self.needed(name)


def tally(names: Any) -> dict[str | None, int]:
    """How often each item occurs."""
    out: dict[str | None, int] = {}
    for name in names:
        out[name] = out.get(name, 0) + 1
    return out


def plain_agrees(budget: Item, pod: Item) -> bool:
    """The verdict of a plain budget by its status, as the server decides."""
    status = budget["status"]
    if not is_ready(pod):
        if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
            return True
        if status["currentHealthy"] >= status["desiredHealthy"] > 0:
            return True
    return bool(status["disruptionsAllowed"] > 0)


def verdict(dump: Dump, counts: dict[str, Count], pod: Item) -> Row:
    """The expected verdict of ``explain pods``."""

    def row(code: str, blockers: Any = (), charged: bool = False) -> Row:
        return {
            "allowed": code != "Blocked",
            "charged": charged,
            "code": code,
            "blockers": sorted(blockers),
        }

    if not is_present(pod) or pod["status"]["phase"] == "Pending":
        return row("Free")
    covering = [budget for budget in dump.budgets() if selects(budget, pod)]
    plain = [budget for budget in covering if is_plain(budget)]
    termed = [
        budget
        for budget in covering
        if budget["kind"] == "PodDisruptionBudget" and budget not in plain
    ]
    blockers: list[tuple[str, str, str | None]] = [
        (budget["metadata"]["name"], budget["kind"], "*")
        for budget in plain
        if (len(plain) > 1 and not termed) or not plain_agrees(budget, pod)
    ]
    if not blockers and pod["metadata"]["uid"] in dump.granted:
        return row("Granted")
    answers = []
    for budget in covering:
        if budget in plain:
            continue
        count = counts[budget["metadata"]["name"]]
        answer = count.agrees(pod)
        if answer is not None:
            answers.append(answer)
        if answer is False:
            blockers.append((budget["metadata"]["name"], budget["kind"], count.domain_of(pod)))
    if blockers:
        return row("Blocked", blockers)
    if not answers and not plain:
        return row("Uncovered")
    if not is_ready(pod):
        return row("Unready")
    return row("Allowed", charged=bool(answers))
