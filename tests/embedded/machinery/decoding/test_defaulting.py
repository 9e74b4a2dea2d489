"""Objects get the defaults of a real server: its recorded answers are the examples."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tools.tables.defaults import BY_HAND, STATUS, without_server_fields

from zonewise.embedded.machinery.decoding.decoder import decode_value
from zonewise.embedded.machinery.decoding.default_rules import RULES, pull_policy
from zonewise.embedded.machinery.decoding.defaulting import complete
from zonewise.embedded.machinery.schema.definitions import Definitions, defaults_table

DEFINITIONS = Definitions()
CORE = "io.k8s.api.core.v1."
ANSWERS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("answers.json").read_text())[
    "answers"
]


def completed(definition: str, value: dict[str, Any]) -> dict[str, Any]:
    """An object with all defaults."""
    kind = DEFINITIONS.schema(definition)
    return complete(kind, decode_value(kind, copy.deepcopy(value)).value)


def name_of(answer: dict[str, Any]) -> str:
    """Kind and name of a sample."""
    return f"{answer['sent']['kind']}/{answer['sent']['metadata']['name']}"


@pytest.mark.parametrize("answer", ANSWERS, ids=name_of)
def test_defaults_are_those_of_a_real_server(answer: dict[str, Any]) -> None:
    """A sample with our defaults equals the real server's answer, less what admission sets."""
    kind = DEFINITIONS.schema(answer["type"])
    ours = completed(answer["type"], answer["sent"])
    if answer["type"] not in STATUS:
        ours.pop("status", None)
    assert without_server_fields(kind, ours) == answer["got"]


@pytest.mark.parametrize("answer", ANSWERS, ids=name_of)
def test_completing_is_done_once(answer: dict[str, Any]) -> None:
    """Defaulting is idempotent, so a write without changes changes nothing."""
    once = completed(answer["type"], answer["sent"])
    assert completed(answer["type"], once) == once


def test_every_handwritten_rule_is_needed() -> None:
    """The fields computed here are those the generator found to depend on others."""
    unasked = {CORE + kind for kind in ("Service", "Namespace", "Secret", "Pod")}
    parents = {  # these stand at the kind whose field they fill
        "io.k8s.api.batch.v1.Job",
        CORE + "PersistentVolume",
        CORE + "ReplicationController",
        "io.k8s.api.apps.v1.StatefulSetSpec",
        "io.k8s.api.autoscaling.v2.HorizontalPodAutoscalerBehavior",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinitionSpec",
        "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceConversion",
    }
    assert RULES.keys() - BY_HAND.keys() == unasked | parents


def test_defaults_are_never_shared() -> None:
    """Changing one object does not change the default of the next."""
    kind = CORE + "Pod"
    first = completed(kind, {"spec": {"containers": []}})
    first["spec"]["securityContext"]["runAsUser"] = 1
    assert completed(kind, {"spec": {"containers": []}})["spec"]["securityContext"] == {}
    policy = "io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler"
    completed(policy, {})["spec"]["metrics"][0]["type"] = "Bogus"
    assert completed(policy, {})["spec"]["metrics"][0]["type"] == "Resource"


def test_empty_status_is_printed_as_go_prints_it() -> None:
    """Fields without omitempty are present although they are not set."""
    budget = completed("io.k8s.api.policy.v1.PodDisruptionBudget", {})
    assert budget["status"] == {
        "currentHealthy": 0,
        "desiredHealthy": 0,
        "disruptionsAllowed": 0,
        "expectedPods": 0,
    }
    slices = completed("io.k8s.api.discovery.v1.EndpointSlice", {"addressType": "IPv4"})
    assert slices["endpoints"] is None
    assert slices["ports"] is None


def test_the_default_ip_mode_of_a_load_balancer() -> None:
    """The ipMode of an ingress with an address is VIP, only for Services of type LoadBalancer."""
    status = {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}, {"hostname": "a"}]}}
    service = completed(CORE + "Service", {"spec": {"type": "LoadBalancer"}, "status": status})
    assert service["status"]["loadBalancer"]["ingress"] == [
        {"ip": "1.2.3.4", "ipMode": "VIP"},
        {"hostname": "a"},
    ]
    assert "ipMode" not in json.dumps(completed(CORE + "Service", {"status": status}))


def test_allocatable_defaults_to_capacity() -> None:
    """A node that reports only its capacity can allocate all of it."""
    node = completed(CORE + "Node", {"status": {"capacity": {"cpu": "1"}}})
    assert node["status"]["allocatable"] == {"cpu": "1"}
    both = {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "0.5"}}
    assert completed(CORE + "Node", {"status": both})["status"]["allocatable"] == {"cpu": "500m"}


def test_pod_level_requests_count_what_runs_at_the_same_time() -> None:
    """Init containers run one after the other, beside the sidecars."""

    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "a", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "resources": {"limits": {"cpu": "10"}},
        "initContainers": [
            container("1", restartPolicy="Always"),
            container("5"),
            container("500m", restartPolicy="Always"),
        ],
        "containers": [container("1"), container("2500m")],
    }
    pod = completed(CORE + "Pod", {"spec": spec})
    assert pod["spec"]["resources"]["requests"] == {"cpu": "6"}
    spec["containers"] = [container("4")]
    pod = completed(CORE + "Pod", {"spec": spec})
    assert pod["spec"]["resources"]["requests"] == {"cpu": "6"}
    spec["containers"] = [container("5")]
    pod = completed(CORE + "Pod", {"spec": spec})
    assert pod["spec"]["resources"]["requests"] == {"cpu": "6500m"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("example.com:5000/a/b", "Always"),
        ("localhost/a:latest", "Always"),
        ("[::1]:5000/a", "Always"),
        ("a:1", "IfNotPresent"),
        ("a@sha256:" + "a" * 64, "IfNotPresent"),
        ("a:latest@sha256:" + "a" * 64, "Always"),
        ("Example/a", "Always"),
        ("A", "IfNotPresent"),
        ("a b", "IfNotPresent"),
        ("", "IfNotPresent"),
        ("a" * 64, "IfNotPresent"),
        ("a" * 300, "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    """Only `latest`, given or implied, is pulled always; an invalid reference has no tag."""
    assert pull_policy(image) == policy


def test_generated_files_name_their_source() -> None:
    """Generated files name the command that made them and the version they were made from."""
    assert "python -m tools.tables" in defaults_table().generated
    assert defaults_table().version == "v1.36.4"
