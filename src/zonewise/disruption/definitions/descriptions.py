"""What each field of our kinds is for, in a sentence, as ``kubectl explain`` shows it."""

from __future__ import annotations

from collections.abc import Mapping

_EXPRESSIONS = {
    "": "Conditions on labels, all of which must hold.",
    "[].key": "The label that the condition is about.",
    "[].operator": "How the label is compared with the values.",
    "[].values": "The values that the label is compared with; empty for Exists and DoesNotExist.",
}
_CONDITIONS = {
    "": "Conditions of the object, each with a reason.",
    "[].type": "The name of the condition.",
    "[].status": "Whether the condition holds: True, False or Unknown.",
    "[].reason": "Why it has this status, in one word.",
    "[].message": "Why it has this status, in a sentence.",
    "[].observedGeneration": "The generation of the object that the condition is about.",
    "[].lastTransitionTime": "When the status of the condition last changed.",
}
_OBSERVED = "The generation of the object that this status is about."


def _prefix_paths(path: str, fields: Mapping[str, str]) -> dict[str, str]:
    return {path + rest: text for rest, text in fields.items()}


DESCRIPTIONS: Mapping[str, Mapping[str, str]] = {
    "TopologyDisruptionBudget": {
        "spec": "Which pods may be disrupted, how many, and in which failure domains.",
        "spec.selector.matchLabels": "Labels that a pod must have, with their values.",
        **_prefix_paths("spec.selector.matchExpressions", _EXPRESSIONS),
        **_prefix_paths("spec.nodeSelectorTerm.matchExpressions", _EXPRESSIONS),
        **_prefix_paths("spec.nodeSelectorTerm.matchFields", _EXPRESSIONS),
        "spec.nodeSelectorTerm.matchFields": "Conditions on fields of nodes, such as their names.",
        "spec.nodeSelectorTerm.matchFields[].key": "The field that the condition is about.",
        "spec.nodeSelectorTerm.matchFields[].operator": "How the field is compared to the values.",
        "spec.nodeSelectorTerm.matchFields[].values": "The values that the field is compared with.",
        "spec.crossDomain": "Independent counts each domain by itself; Exclusive allows no"
        " disruption in a domain while another one lacks a healthy pod.",
        "spec.unhealthyPodEvictionPolicy": "Whether running pods that are not ready may be evicted"
        " always, or only while the domain has enough healthy pods.",
        "spec.expectedPods": "Remembered expects in each domain the pods that it had when the"
        " workload was last stable; ReplicasPerDomain divides the replicas by the domains.",
        "spec.holds": "Disruptions limits every eviction; Updates limits only the removal of pods"
        " of an old revision and deletions by workload controllers.",
        "spec.mode": "Enforce refuses what is not allowed; Observe only reports it.",
        "status": "What is allowed now, and why.",
        "status.observedGeneration": _OBSERVED,
        "status.domains": "The counts of each domain.",
        "status.domains[].domain": "The value of the topology key that names the domain.",
        "status.domains[].expectedPods": "How many pods the domain should have.",
        "status.domains[].desiredHealthy": "How many of its pods must be healthy.",
        "status.domains[].currentHealthy": "How many of its pods are healthy.",
        "status.domains[].disruptionsAllowed": "How many of its pods may be disrupted now.",
        **_prefix_paths("status.conditions", _CONDITIONS),
    },
    "DisruptionLedger": {
        "spec": "The permissions that were given in this namespace.",
        "spec.grants": "Permissions to disrupt a pod, one for each pod.",
        "spec.grants[].uid": "The uid of the pod that may be disrupted.",
        "spec.grants[].pod": "The name of the pod that may be disrupted.",
        "spec.grants[].time": "When the permission was given.",
        "spec.judged": "The version of each budget by which the last permission was judged.",
    },
    "DomainRollout": {
        "spec": "Which workload is updated, by which domains and in which order.",
        "spec.workloadRef.kind": "The kind of the workload.",
        "spec.workloadRef.name": "The name of the workload.",
        "status": "How far the rollout is, and why.",
        "status.observedGeneration": _OBSERVED,
        "status.domains": "How far each domain is.",
        "status.domains[].domain": "The value of the topology key that names the domain.",
        "status.domains[].state": "Done, Doing (being updated), Next or Later.",
        "status.domains[].pods": "How many pods of the workload the domain has.",
        "status.domains[].updated": "How many of them are of the new revision.",
        "status.domains[].ready": "How many of them are ready.",
        "status.domains[].finishedAt": "When the domain was completely updated by this rollout.",
        **_prefix_paths("status.conditions", _CONDITIONS),
    },
}
"""What ``kubectl explain`` says of each kind's fields; ``[]`` stands for the items of a list."""
