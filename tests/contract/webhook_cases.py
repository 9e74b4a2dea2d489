"""Situations with admission webhooks, each a function that leaves its facts in a bench's notebook.

They run on the embedded server, where each also states what must be true, and on a real one, where
the two notebooks must be equal.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import trustme
from tests.contract.webhook_bench import (
    JSON_PATCH,
    MERGE_PATCH,
    Answer,
    Bench,
    allow,
    annotate,
    config,
    deny,
    patch,
    rule,
)
from tests.runtime.loopback import Reply, closed_port

STRANGE_CA = trustme.CA().cert_pem.bytes().decode()
DRY = {"dryRun": "All"}
Obj = dict[str, Any]
Situation = Callable[[Bench], Awaitable[None]]


async def allowed(bench: Bench) -> None:
    """An allowed write is not changed; the webhook gets the complete request."""
    await bench.register("yes")
    created = await bench.note(
        "create", await create(bench, "a", query={"fieldManager": "me"}, x="1")
    )
    assert created.status == 201
    changed = await bench.ask(
        "PATCH",
        configmap_path(bench, "a"),
        {"data": {"x": "2"}},
        kind=MERGE_PATCH,
        fieldManager="me",
    )
    await bench.note("patch", changed)
    changed.body["data"] = {"x": "3"}
    await bench.note("put", await bench.ask("PUT", configmap_path(bench, "a"), changed.body))
    await bench.note("dry", await create(bench, "b", query=DRY | {"fieldValidation": "Strict"}))
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    await bench.note("delete", await bench.ask("DELETE", configmap_path(bench, "a"), options))
    bench.note_requests("yes")
    operations = [request["operation"] for request in bench.webhooks.requests["yes"]]
    assert operations == ["CREATE", "UPDATE", "UPDATE", "CREATE", "DELETE"]


async def denied(bench: Bench) -> None:
    """A refusal has the webhook's code, reason and message, or defaults."""
    await bench.register("no", deny(code=418, reason="Teapot", message="no coffee"))
    refused = await bench.note("all", await create(bench, "a"))
    assert refused.refusal == (
        418,
        "Teapot",
        'admission webhook "no.zonewise.io" denied the request: no coffee',
    )
    for what, status in (
        ("nothing", {}),
        ("reason", {"reason": "Because"}),
        ("message", {"message": "why not"}),
        ("code", {"code": 409}),
        ("low code", {"code": 200, "message": "fine"}),
        ("status", {"status": "Success", "message": "well"}),
        ("details", {"code": 403, "message": "m", "details": {"name": "n", "kind": "k"}}),
    ):
        bench.webhooks.handlers["no"] = deny(**status)
        answer = await bench.note(what, await create(bench, "a"))
        assert answer.status >= 400
    bench.notes.append(answer.body.get("details"))


async def denied_by_mutating(bench: Bench) -> None:
    """A mutating webhook may refuse, too, and then no later one is called."""
    await bench.register("no", deny(message="never"), mutating=True, more={"later": allow()})
    refused = await bench.note("create", await create(bench, "a"))
    assert "denied the request: never" in refused.body["message"]
    bench.note_requests("later")
    assert "later" not in bench.webhooks.requests


async def mutated(bench: Bench) -> None:
    """A mutating webhook's patch is stored and sent to the next one; unknown fields are dropped."""
    first = patch(
        {"op": "add", "path": "/data", "value": {"added": "yes"}},
        {"op": "add", "path": "/nonsense", "value": {"deep": 1}},
        {"op": "add", "path": "/metadata/labels", "value": {"one": "1"}},
    )
    await bench.register(
        "first", first, mutating=True, more={"second": annotate("two", "2"), "third": patch()}
    )
    created = await bench.note("create", await create(bench, "a", x="gone"))
    assert created.body["data"] == {"added": "yes"}
    assert created.body["metadata"]["annotations"] == {"two": "2"}
    assert "nonsense" not in created.body
    read = await bench.note("read", await bench.ask("GET", configmap_path(bench, "a")))
    assert read.body == created.body
    changed = await bench.ask(
        "PATCH", configmap_path(bench, "a"), {"data": {"y": "1"}}, kind=MERGE_PATCH
    )
    await bench.note("patch", changed)
    bench.note_requests("first", "second", "third")


async def defaulted(bench: Bench) -> None:
    """Defaults are set in what a webhook adds before the next one sees it."""
    port = {"op": "add", "path": "/spec/ports/-", "value": {"name": "b", "port": 81}}
    await bench.register(
        "adds",
        patch(port),
        mutating=True,
        more={"looks": allow()},
        rules=[rule("configmaps", operations=("CREATE",)), rule("services")],
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"clusterIP": "None", "ports": [{"name": "a", "port": 80}]},
    }
    created = await bench.note("create", await bench.ask("POST", f"{bench.path}/services", service))
    assert created.body["spec"]["ports"][1]["protocol"] == "TCP"
    seen = bench.webhooks.requests["looks"][-1]["object"]["spec"]["ports"][1]
    assert (seen["targetPort"], seen["protocol"]) == (81, "TCP")
    bench.note_requests("looks")


async def bad_patches(bench: Bench) -> None:
    """A patch that is invalid or cannot be applied fails the write, in most cases by any policy."""
    await bench.register("closed", mutating=True)
    await bench.register("open", mutating=True, failurePolicy="Ignore")
    for what, response in (
        ("does not fit", patch({"op": "remove", "path": "/no/such"})),
        ("failed test", patch({"op": "test", "path": "/kind", "value": "Pod"})),
        ("wrong type", patch({"op": "add", "path": "/data", "value": "text"})),
        ("no list", allow(patch=_base64("{}"), patchType="JSONPatch")),
        ("null", allow(patch=_base64("null"), patchType="JSONPatch")),
        ("no JSON", allow(patch=_base64("nonsense"), patchType="JSONPatch")),
        ("no operation", patch({"op": "invent", "path": "/data"})),
        ("other kind", patch({"op": "replace", "path": "/kind", "value": "Pod"})),
        ("no kind", patch({"op": "remove", "path": "/kind"})),
        ("other type", allow(patch=_base64('[{"op":"x"}]'), patchType="Merge")),
    ):
        for name in ("closed", "open"):
            bench.webhooks.handlers.update(closed=allow(), open=allow())
            bench.webhooks.handlers[name] = response
            answer = await create(bench, "a", query=DRY)
            bench.notes.append((what, name, answer.refusal[:2]))


async def bad_answers(bench: Bench) -> None:
    """An invalid answer is a failed call."""
    await bench.register("odd", mutating=True)
    await bench.register("strange")
    for what, name, response in BAD_ANSWERS:
        bench.webhooks.handlers.update(odd=allow(), strange=allow())
        bench.webhooks.handlers[name] = response
        answer = await create(bench, "a", query=DRY)
        assert answer.refusal[:2] == (500, "InternalError"), (what, answer)
        message = bench.plain(answer.body["message"])
        start, called, _ = message.partition("failed to call webhook: ")
        message = start + called if called else message  # what follows is a parser's own words
        bench.notes.append((what, answer.refusal[:2], message))
        assert f'failed calling webhook "{name}.zonewise.io": ' in message


async def failing_open(bench: Bench) -> None:
    """With the policy Ignore a failed call is as if the webhook were not there."""
    await bench.register("odd", mutating=True, failurePolicy="Ignore")
    await bench.register("strange", failurePolicy="Ignore")
    for what, name, response in BAD_ANSWERS:
        bench.webhooks.handlers.update(odd=allow(), strange=allow())
        bench.webhooks.handlers[name] = response
        answer = await bench.note(what, await create(bench, "a", query=DRY))
        assert answer.status == 201


async def slow(bench: Bench) -> None:
    """A call that takes longer than the webhook's timeout fails; the failure policy decides."""

    def sleepy(_: Obj) -> Obj:
        bench.webhooks.gate.wait(20)
        return {"allowed": False}

    await bench.register("closed", sleepy, timeoutSeconds=1)
    refused = await bench.note("fail", await create(bench, "a"))
    assert refused.refusal[:2] == (500, "InternalError")
    assert "context deadline exceeded" in refused.body["message"]
    assert bench.webhooks.paths[-1] == "/closed?timeout=1s"


async def slashed(bench: Bench) -> None:
    """Empty steps, dots and a last slash of a webhook's path are not sent."""
    for number, text in enumerate(("//seen", "/./a/../seen", "/seen/")):
        client = bench.client("seen") | {"url": bench.web.url + text}
        await bench.register("seen", configuration=f"c{number}", clientConfig=client)
        created = await create(bench, f"a{number}")
        assert created.status == 201, created
    bench.notes.append([path.partition("?")[0] for path in bench.webhooks.paths])
    assert {path.partition("?")[0] for path in bench.webhooks.paths} == {"/seen"}


async def redirected(bench: Bench) -> None:
    """Redirects with 307 and 308 are followed."""
    bench.webhooks.handlers["there"] = deny(message="found")
    for status in (307, 308):
        for number, target in enumerate(("/there", f"{bench.web.url}/there", "there")):
            moved = Reply(status=status, headers={"Location": target})
            await bench.register(f"moved{status}{number}", _replies(moved))
            answer = await bench.note(
                target.replace(bench.web.url, "URL"), await create(bench, "a")
            )
            assert answer.body["message"].endswith("denied the request: found"), answer
            bench.notes.append([path.partition("?")[0] for path in bench.webhooks.paths])
            bench.webhooks.paths.clear()
            await bench.unregister()
            bench.webhooks.handlers["there"] = deny(message="found")


async def misdirected(bench: Bench) -> None:
    """Redirects in a circle, without an address, or with another method fail the call."""
    for what, reply in (
        ("circle", Reply(status=307, headers={"Location": "/circle"})),
        ("nowhere", Reply(status=307)),
        ("get", Reply(status=302, headers={"Location": "/circle"})),
        ("scheme", Reply(status=307, headers={"Location": "ftp://127.0.0.1/circle"})),
    ):
        await bench.register(what, _replies(reply))
        answer = await create(bench, "a", query=DRY)
        assert answer.refusal[:2] == (500, "InternalError")
        count = sum(path.startswith(f"/{what}?") for path in bench.webhooks.paths)
        bench.notes.append((what, answer.refusal[:2], count))
        await bench.unregister()


async def slow_ignored(bench: Bench) -> None:
    """With the policy Ignore the write does not wait longer than the timeout either."""

    def sleepy(_: Obj) -> Obj:
        bench.webhooks.gate.wait(20)
        return {"allowed": False}

    await bench.register("open", sleepy, timeoutSeconds=1, failurePolicy="Ignore")
    created = await bench.note("ignore", await create(bench, "a"))
    assert created.status == 201


async def unreachable(bench: Bench) -> None:
    """The error of an unreachable webhook names its address."""
    port = closed_port()
    client = {**bench.client("x"), "url": f"https://127.0.0.1:{port}/x"}
    await bench.register("nowhere", clientConfig=client, rules=[rule("secrets")])
    refused = await bench.ask("POST", f"{bench.path}/secrets", secret("a"))
    message = refused.body["message"].replace(str(port), "GONE")
    bench.notes.append((refused.refusal[:2], message))
    assert "connection refused" in message
    await account(bench)
    unknown = {"url": f"{bench.web.url}/nowhere", "caBundle": _base64(STRANGE_CA)}
    await bench.register("unknown", clientConfig=unknown, rules=[rule("pods")])
    refused = await bench.ask("POST", f"{bench.path}/pods", pod("a"))
    bench.notes.append((refused.refusal[:2], "x509: " in refused.body["message"]))
    assert "certificate" in refused.body["message"]
    service = {"service": {"namespace": bench.ns, "name": "no-such"}}
    await bench.register("behind", clientConfig=service, rules=[rule("limitranges")])
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a"}}
    refused = await bench.ask("POST", f"{bench.path}/limitranges", limits)
    await bench.note("no service", refused)


async def warned(bench: Bench) -> None:
    """Warnings reach the client, whether the write is allowed or refused."""
    await bench.register("careful", allow(warnings=["mind the gap", 'and "this"']))
    created = await bench.note("allowed", await create(bench, "a"))
    assert created.warnings == ['299 - "mind the gap"', '299 - "and \\"this\\""']
    bench.webhooks.handlers["careful"] = lambda _: {"allowed": False, "warnings": ["too late"]}
    refused = await bench.note("refused", await create(bench, "b"))
    assert refused.warnings == ['299 - "too late"']
    bench.webhooks.handlers["careful"] = allow(warnings=["x" * 5000])
    long = await create(bench, "c")
    assert sum(map(len, long.warnings)) < 5000
    bench.notes.append(len(long.warnings))


async def dry_run(bench: Bench) -> None:
    """A dry run never reaches a webhook with side effects."""
    await bench.register("clean", sideEffects="NoneOnDryRun")
    created = await bench.note("clean", await create(bench, "a", query=DRY))
    assert created.status == 201
    assert bench.webhooks.requests["clean"][0]["dryRun"] is True
    bench.note_requests("clean")
    some = await bench.register("some", sideEffects="Some")
    bench.notes.append(("effects", some.status))
    assert (await bench.ask("GET", configmap_path(bench, "a"))).status == 404


async def object_selector(bench: Bench) -> None:
    """An object selector matches the old or the new object."""
    await bench.register("red", objectSelector={"matchLabels": {"colour": "red"}})
    await bench.note("blue", await create(bench, "a", labels={"colour": "blue"}))
    assert "red" not in bench.webhooks.requests
    for colour in ("red", "green", "blue"):
        change = {"metadata": {"labels": {"colour": colour}}}
        answer = await bench.ask("PATCH", configmap_path(bench, "a"), change, kind=MERGE_PATCH)
        await bench.note(colour, answer)
    assert len(bench.webhooks.requests["red"]) == 2
    bench.note_requests("red")


async def namespace_selector(bench: Bench) -> None:
    """A namespace selector matches the labels of the namespace, also of a written Namespace."""
    selector = {"matchLabels": {"bench": bench.ns, "strict": "yes"}}
    label = {"metadata": {"labels": {"strict": "yes"}}}
    probe = {"matchLabels": {"bench": bench.ns}}
    space = f"/api/v1/namespaces/{bench.ns}"
    assert (await bench.ask("PATCH", space, label, kind=MERGE_PATCH)).status == 200
    await bench.register(
        "strict", namespaceSelector=selector, rules=[rule("configmaps", "namespaces")]
    )
    await bench.note("strict", await create(bench, "a"))
    assert len(bench.webhooks.requests["strict"]) == 1
    change = {"metadata": {"labels": {"other": "x"}}}
    await bench.note("own", await bench.ask("PATCH", space, change, kind=MERGE_PATCH))
    assert bench.webhooks.requests["strict"][-1]["namespace"] == bench.ns
    loose = {"metadata": {"labels": {"strict": None}}}
    await bench.note("loosened", await bench.ask("PATCH", space, loose, kind=MERGE_PATCH))
    assert len(bench.webhooks.requests["strict"]) == 2, probe
    bench.note_requests("strict")


async def scope(bench: Bench) -> None:
    """A rule of one scope does not match objects of the other; a Namespace is cluster-scoped."""
    mine = {"matchLabels": {"mine": bench.ns}}
    everything = ("configmaps", "namespaces", "priorityclasses")
    groups = ("", "scheduling.k8s.io")
    for name, wide in (("inside", "Namespaced"), ("outside", "Cluster"), ("both", "*")):
        await bench.register(
            name,
            rules=[rule(*everything, groups=groups, scope=wide)],
            objectSelector=mine,
            namespaceSelector={},
        )
    labels = {"mine": bench.ns}
    await bench.note("configmap", await create(bench, "a", labels=labels))
    space: Obj = {"apiVersion": "v1", "kind": "Namespace"}
    space["metadata"] = {"name": f"{bench.ns}-x", "labels": labels}
    await bench.note("namespace", await bench.ask("POST", "/api/v1/namespaces", space))
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    chosen: Obj = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1}
    chosen["metadata"] = {"name": f"{bench.ns}-p", "labels": labels}
    await bench.note("class", await bench.ask("POST", path, chosen))
    for name in ("inside", "outside", "both"):
        kinds = [request["kind"]["kind"] for request in bench.webhooks.requests[name]]
        bench.notes.append((name, kinds))
    bench.note_requests("both")
    assert bench.notes[-4:-1] == [
        ("inside", ["ConfigMap"]),
        ("outside", ["Namespace", "PriorityClass"]),
        ("both", ["ConfigMap", "Namespace", "PriorityClass"]),
    ]
    await bench.ask("DELETE", f"{path}/{bench.ns}-p")


async def rules(bench: Bench) -> None:
    """Rules choose by operation, group, version, resource and subresource."""
    await account(bench)
    pods = {
        "plain": ["pods"],
        "below": ["pods/*"],
        "status": ["pods/status"],
        "all": ["*"],
        "all-below": ["*/*"],
        "statuses": ["*/status"],
    }
    for name, resources in pods.items():
        await bench.register(name, rules=[rule("configmaps"), rule(*resources, groups=("",))])
    await bench.register(
        "deletes", rules=[rule("configmaps"), rule("pods", operations=("DELETE",))]
    )
    await bench.register("other", rules=[rule("configmaps"), rule("pods", groups=("apps",))])
    await bench.register("old", rules=[rule("configmaps"), rule("pods", versions=("v1beta1",))])
    for requests in bench.webhooks.requests.values():
        requests.clear()
    created = await bench.ask("POST", f"{bench.path}/pods", pod("p"))
    assert created.status == 201, created
    change = {"status": {"phase": "Failed"}}
    path = f"{bench.path}/pods/p"
    assert (await bench.ask("PATCH", f"{path}/status", change, kind=MERGE_PATCH)).status == 200
    assert (await bench.ask("DELETE", path, gracePeriodSeconds="0")).status == 200
    for name in (*pods, "deletes", "other", "old"):
        # A real server may call twice for one deletion that needs no grace.
        seen = dict.fromkeys(
            f"{request['operation']} {request.get('subResource', '')}"
            for request in bench.webhooks.requests.get(name, [])
            if request["resource"]["resource"] == "pods"
        )
        bench.notes.append((name, list(seen)))
    assert dict(bench.notes)["below"] == ["CREATE ", "UPDATE status", "DELETE "]
    assert dict(bench.notes)["all"] == ["CREATE ", "DELETE "]
    assert dict(bench.notes)["statuses"] == ["UPDATE status"]
    assert dict(bench.notes)["deletes"] == ["DELETE "]
    assert not dict(bench.notes)["other"] and not dict(bench.notes)["old"]


async def match_policy(bench: Bench) -> None:
    """With Equivalent, objects of other versions are converted; with Exact, they do not match."""
    probe = rule("configmaps")
    old = rule("horizontalpodautoscalers", groups=("autoscaling",), versions=("v1",))
    adds = patch({"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 55})
    await bench.register("equal", adds, mutating=True, rules=[probe, old], matchPolicy="Equivalent")
    await bench.register("exact", rules=[probe, old], matchPolicy="Exact")
    scaler: Obj = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "h"},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "maxReplicas": 3,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {
                        "name": "cpu",
                        "target": {"type": "Utilization", "averageUtilization": 70},
                    },
                }
            ],
        },
    }
    path = f"/apis/autoscaling/v2/namespaces/{bench.ns}/horizontalpodautoscalers"
    created = await bench.note("create", await bench.ask("POST", path, scaler))
    target = created.body["spec"]["metrics"][0]["resource"]["target"]
    assert target["averageUtilization"] == 55
    question = bench.webhooks.requests["equal"][-1]
    assert (question["kind"]["version"], question["requestKind"]["version"]) == ("v1", "v2")
    bench.note_requests("equal", "exact")
    assert "exact" not in bench.webhooks.requests


async def conditions(bench: Bench) -> None:
    """Match conditions select by the content of the request."""
    await bench.register(
        "chosen",
        matchConditions=[
            {"name": "big", "expression": "object.?data.?x.orValue('') == 'big'"},
            {"name": "creates", "expression": "request.operation == 'CREATE'"},
        ],
    )
    await bench.note("small", await create(bench, "a", x="small"))
    assert "chosen" not in bench.webhooks.requests
    await bench.note("big", await create(bench, "b", x="big"))
    assert len(bench.webhooks.requests["chosen"]) == 1


async def failing_conditions(bench: Bench) -> None:
    """A condition that fails refuses the write or skips the webhook; a false one skips it."""
    fails = {"name": "fails", "expression": "object.data.nothing == 'x'"}
    false = {"name": "false", "expression": "request.operation == 'NEVER'"}
    await bench.register("over", matchConditions=[fails], failurePolicy="Ignore")
    await bench.register("decided", matchConditions=[fails, false])
    assert (await create(bench, "a", y="1")).status == 201
    assert not {"over", "decided"} & set(bench.webhooks.requests)
    secrets = rule("secrets")
    await bench.register("refused", matchConditions=[fails], rules=[secrets])
    refused = await bench.ask("POST", f"{bench.path}/secrets", secret("s"))
    bench.notes.append(refused.refusal[:2])
    assert refused.refusal[:2] == (403, "Forbidden")


async def reinvoked(bench: Bench) -> None:
    """With IfNeeded, a webhook is called once more after a later one changed the object."""
    await bench.register(
        "first",
        annotate("first", "1"),
        mutating=True,
        configuration="a",
        reinvocationPolicy="IfNeeded",
        more={"again": annotate("again", "1")},
    )
    await bench.register("never", annotate("never", "1"), mutating=True, configuration="b")
    await bench.register("last", mutating=True, configuration="c", reinvocationPolicy="IfNeeded")
    created = await bench.note("create", await create(bench, "a"))
    counts = {
        name: len(bench.webhooks.requests[name]) for name in ("first", "again", "never", "last")
    }
    bench.notes.append(counts)
    assert counts == {"first": 2, "again": 2, "never": 1, "last": 1}
    assert set(created.body["metadata"]["annotations"]) == {"first", "again", "never"}
    bench.note_requests("first", "last")


async def deleted(bench: Bench) -> None:
    """Webhooks of both kinds are called for deletions, with the current object."""
    only = [rule("configmaps", operations=("DELETE",)), rule("configmaps", operations=("CREATE",))]
    await bench.register("says", rules=only)
    await bench.register("sees", mutating=True, rules=only)
    await create(bench, "a", x="1")
    bench.webhooks.handlers["says"] = deny(message="stay", code=403, reason="Forbidden")
    refused = await bench.note("refused", await bench.ask("DELETE", configmap_path(bench, "a")))
    assert refused.status == 403
    bench.webhooks.handlers["says"] = allow()
    bench.webhooks.handlers["sees"] = patch({"op": "add", "path": "/data", "value": {}})
    patched = await bench.note("patched", await bench.ask("DELETE", configmap_path(bench, "a")))
    assert "attempted to modify the object" in patched.body["message"]
    bench.webhooks.handlers["sees"] = allow()
    gone = await bench.note("gone", await bench.ask("DELETE", configmap_path(bench, "a")))
    assert gone.status == 200
    bench.note_requests("says", "sees")


async def deleted_together(bench: Bench) -> None:
    """For the deletion of a collection, webhooks are called for each object."""
    for name in ("a", "b"):
        await create(bench, name, labels={"set": "x"})
    await bench.register("each", rules=[rule("configmaps")])
    await bench.register("sees", mutating=True)
    path = f"{bench.path}/configmaps"
    gone = await bench.ask("DELETE", path, labelSelector="set=x")
    bench.notes.append(gone.status)
    bench.note_requests("each", "sees")
    assert len(bench.webhooks.requests["each"]) == 2


async def generated(bench: Bench) -> None:
    """Validating webhooks get a generated name, mutating ones do not."""
    await bench.register("before", mutating=True)
    await bench.register("after")
    obj = config("")
    obj["metadata"] = {"generateName": "made-"}
    created = await bench.ask("POST", f"{bench.path}/configmaps", obj)
    assert created.status == 201
    before, after = bench.webhooks.requests["before"][-1], bench.webhooks.requests["after"][-1]
    assert "name" not in before and "name" not in before["object"]["metadata"]
    assert after["name"] == after["object"]["metadata"]["name"] == created.body["metadata"]["name"]
    bench.notes.append((sorted(before), sorted(after)))
    bench.notes.append((sorted(before["object"]["metadata"]), sorted(after["object"]["metadata"])))


async def several(bench: Bench) -> None:
    """All validating webhooks are called, also after one of them refused."""
    await bench.register("a", deny(message="from a"), more={"b": allow(), "c": allow()})
    refused = await bench.note("create", await create(bench, "x"))
    assert "from a" in refused.body["message"]
    assert all(len(bench.webhooks.requests[name]) == 1 for name in ("a", "b", "c"))


async def exempt(bench: Bench) -> None:
    """No webhook is called for webhook configurations."""
    every = rule("*", groups=("*",))
    mine = {"matchLabels": {"mine": bench.ns}}
    await bench.register("greedy", deny(), rules=[every], objectSelector=mine, namespaceSelector={})
    labels = {"mine": bench.ns}
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    obj = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"{bench.ns}-free", "labels": labels},
    }
    created = await bench.note("create", await bench.ask("POST", path, obj))
    assert created.status == 201
    await bench.note("delete", await bench.ask("DELETE", f"{path}/{bench.ns}-free"))
    refused = await bench.note("others", await create(bench, "a", labels=labels))
    assert refused.status == 400


async def old_reviews(bench: Bench) -> None:
    """A webhook that accepts only v1beta1 reviews gets them."""
    await bench.register(
        "old", annotate("a", "b"), mutating=True, admissionReviewVersions=["v1beta1"]
    )
    created = await bench.note("create", await create(bench, "a"))
    assert created.body["metadata"]["annotations"] == {"a": "b"}
    bench.note_requests("old")


async def custom(bench: Bench) -> None:
    """A patched custom resource is pruned and defaulted, and sent in the version of the rule."""
    group = f"{bench.ns}.example.com"
    spec = {
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "ports": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "port": {"type": "integer"},
                        "protocol": {"type": "string", "default": "TCP"},
                    },
                },
            },
        },
    }
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    versions = [
        {"name": name, "served": True, "storage": name == "v1", "schema": schema}
        for name in ("v1", "v1alpha1")
    ]
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": versions},
    }
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert (await bench.ask("POST", definitions, definition)).status == 201
    judge = patch(
        {"op": "add", "path": "/spec/ports", "value": [{"port": 1, "nonsense": 2}]},
        {"op": "add", "path": "/spec/unknown", "value": {"deep": 1}},
    )
    rules = [rule("configmaps"), rule("widgets", groups=(group,), versions=("v1",))]
    await bench.register("adds", judge, mutating=True, more={"looks": allow()}, rules=rules)
    for version in ("v1", "v1alpha1"):
        path = f"/apis/{group}/{version}/namespaces/{bench.ns}/widgets"
        widget = {"apiVersion": f"{group}/{version}", "kind": "Widget", "spec": {"size": 1}}
        widget["metadata"] = {"name": version}
        await bench.wait_until_served(path)
        created = await bench.ask("POST", path, widget)
        assert created.status == 201, created
        await bench.note("read", await bench.ask("GET", f"{path}/{version}"))
        assert created.body["spec"]["ports"] == [{"port": 1, "protocol": "TCP"}]
    kinds = [request["kind"] | {"group": ""} for request in bench.webhooks.requests["adds"]]
    request_versions = [
        request["requestKind"]["version"] for request in bench.webhooks.requests["adds"]
    ]
    bench.notes.append((kinds, request_versions))
    assert request_versions == ["v1", "v1alpha1"]
    await bench.ask("DELETE", f"{definitions}/widgets.{group}")


async def scaled(bench: Bench) -> None:
    """For a write to a scale, webhooks get the Scale and may change its number."""
    rules = [rule("configmaps"), rule("deployments/scale", groups=("apps",))]
    await bench.register("sees", rules=rules)
    path = f"/apis/apps/v1/namespaces/{bench.ns}/deployments"
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    assert (await bench.ask("POST", path, deployment)).status == 201
    to = {"spec": {"replicas": 2}}
    await bench.note("to 2", await bench.ask("PATCH", f"{path}/d/scale", to, kind=MERGE_PATCH))
    more = patch({"op": "replace", "path": "/spec/replicas", "value": 5})
    await bench.register("more", more, mutating=True, rules=rules)
    to = {"spec": {"replicas": 3}}
    await bench.note("to 3", await bench.ask("PATCH", f"{path}/d/scale", to, kind=MERGE_PATCH))
    assert (await bench.ask("GET", f"{path}/d")).body["spec"]["replicas"] == 5
    bench.note_requests("sees", "more")
    assert bench.webhooks.requests["sees"][0]["object"]["kind"] == "Scale"


async def below(bench: Bench) -> None:
    """For bindings, evictions and tokens, webhooks get the Binding, Eviction or TokenRequest."""
    await account(bench)
    resources = ("pods/binding", "pods/eviction", "serviceaccounts/token", "pods/status", "pods")
    await bench.register("sees", rules=[rule("configmaps"), rule(*resources)])
    await bench.register("too", mutating=True, rules=[rule("configmaps"), rule(*resources[:3])])
    path = f"{bench.path}/pods/p"
    assert (await bench.ask("POST", f"{bench.path}/pods", pod("p"))).status == 201
    bench.webhooks.requests["sees"].clear()
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}}
    binding["target"] = {"kind": "Node", "name": "somewhere"}
    await bench.note("bind", await bench.ask("POST", f"{path}/binding", binding))
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["a"], "expirationSeconds": 1000},
    }
    token = await bench.ask("POST", f"{bench.path}/serviceaccounts/default/token", request)
    assert token.status == 201
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    eviction["deleteOptions"] = {"gracePeriodSeconds": 0}
    bench.webhooks.handlers["sees"] = deny(message="not this one", code=403)
    await bench.note("refused", await bench.ask("POST", f"{path}/eviction", eviction))
    bench.webhooks.handlers["sees"] = allow()
    await bench.note("evict", await bench.ask("POST", f"{path}/eviction", eviction))
    bench.note_requests("sees", "too")
    seen = [
        f"{request['operation']} {request['kind']['kind']}"
        for request in bench.webhooks.requests["sees"]
    ]
    assert seen == ["CREATE Binding", "CREATE TokenRequest", *["CREATE Eviction"] * 2]


async def moved(bench: Bench) -> None:
    """A webhook cannot change the identity of an object."""
    await bench.register("moves", mutating=True)
    for what, path, value in (
        ("name", "/metadata/name", "other"),
        ("namespace", "/metadata/namespace", "default"),
        ("uid", "/metadata/uid", "1-2-3"),
        ("owners", "/metadata/managedFields", [{"manager": "x"}]),
        ("version", "/metadata/resourceVersion", "1"),
    ):
        bench.webhooks.handlers["moves"] = allow()
        await create(bench, what)
        bench.webhooks.handlers["moves"] = patch({"op": "add", "path": path, "value": value})
        created = await create(bench, f"{what}-new")
        changed = await bench.ask(
            "PATCH",
            configmap_path(bench, what),
            [{"op": "add", "path": "/data", "value": {"x": "y"}}],
            kind=JSON_PATCH,
        )
        bench.notes.append((what, created.status, created.body.get("reason"), created.warnings))
        bench.notes.append((what, changed.status, changed.body.get("reason")))
        bench.webhooks.handlers["moves"] = allow()


def _replies(reply: Reply) -> Callable[[Obj], Reply]:
    return lambda _: reply


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _raw(text: str, status: int = 200) -> Callable[[Obj], Reply]:
    return lambda _: Reply(status=status, body=text.encode())


def _review(**fields: Any) -> Callable[[Obj], Reply]:
    def judge(request: Obj) -> Reply:
        whole = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": request["uid"], "allowed": True},
        }
        return Reply(body=json.dumps(whole | fields).encode())

    return judge


EMPTY_PATCH = _base64("[]")
PATCH = _base64('[{"op": "add", "path": "/data", "value": {}}]')
BAD_ANSWERS: list[tuple[str, str, Any]] = [
    ("uid", "odd", allow(uid="of another")),
    ("uid", "strange", allow(uid="of another")),
    ("no type", "odd", allow(patch=EMPTY_PATCH)),
    ("no patch", "odd", allow(patchType="JSONPatch")),
    ("other type", "odd", allow(patch=PATCH, patchType="Merge")),
    ("empty type", "odd", allow(patch=PATCH, patchType="")),
    ("no base64", "odd", allow(patch="%%%", patchType="JSONPatch")),
    ("patch", "strange", allow(patch=EMPTY_PATCH)),
    ("type", "strange", allow(patchType="JSONPatch")),
    ("no response", "strange", _review(response=None)),
    ("version", "strange", _review(apiVersion="admission.k8s.io/v1beta1")),
    ("kind", "strange", _review(kind="Review")),
    ("allowed", "strange", allow(allowed="yes")),
    ("no JSON", "strange", _raw("hello")),
    ("empty", "strange", _raw("")),
    ("500", "strange", _raw("broken", 500)),
    ("404", "strange", _raw("nothing", 404)),
    ("302", "strange", lambda _: Reply(status=302, headers={"Location": "/elsewhere"})),
]


async def create(
    bench: Bench,
    name: str,
    *,
    labels: dict[str, str] | None = None,
    query: dict[str, str] | None = None,
    **data: str,
) -> Answer:
    """Create a ConfigMap."""
    obj = config(name, labels=labels, **data)
    return await bench.ask("POST", f"{bench.path}/configmaps", obj, **(query or {}))


async def account(bench: Bench) -> None:
    """Make the service account that pods run as, where no controller does."""
    obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await bench.ask("POST", f"{bench.path}/serviceaccounts", obj)


def configmap_path(bench: Bench, name: str) -> str:
    """The path of a ConfigMap."""
    return f"{bench.path}/configmaps/{name}"


def secret(name: str) -> Obj:
    """A Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}


def pod(name: str) -> Obj:
    """A Pod that needs no service account's token."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "automountServiceAccountToken": False,
        },
    }


SITUATIONS: tuple[Situation, ...] = (
    allowed,
    denied,
    denied_by_mutating,
    mutated,
    defaulted,
    bad_patches,
    bad_answers,
    failing_open,
    slow,
    slashed,
    redirected,
    misdirected,
    slow_ignored,
    unreachable,
    warned,
    dry_run,
    object_selector,
    namespace_selector,
    scope,
    rules,
    match_policy,
    conditions,
    failing_conditions,
    reinvoked,
    deleted,
    deleted_together,
    generated,
    several,
    exempt,
    old_reviews,
    custom,
    scaled,
    below,
    moved,
)
