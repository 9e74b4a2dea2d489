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
    """An allowed write is what it was; the webhook saw all of it."""
    await bench.hook("yes")
    made = await bench.note("create", await create(bench, "a", query={"fieldManager": "me"}, x="1"))
    assert made.status == 201
    changed = await bench.ask(
        "PATCH", one(bench, "a"), {"data": {"x": "2"}}, kind=MERGE_PATCH, fieldManager="me"
    )
    await bench.note("patch", changed)
    changed.body["data"] = {"x": "3"}
    await bench.note("put", await bench.ask("PUT", one(bench, "a"), changed.body))
    await bench.note("dry", await create(bench, "b", query=DRY | {"fieldValidation": "Strict"}))
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
    await bench.note("delete", await bench.ask("DELETE", one(bench, "a"), options))
    bench.asked("yes")
    operations = [asked["operation"] for asked in bench.stranger.asked["yes"]]
    assert operations == ["CREATE", "UPDATE", "UPDATE", "CREATE", "DELETE"]


async def denied(bench: Bench) -> None:
    """A refusal has the webhook's code, reason and words, and defaults where it gave none."""
    await bench.hook("no", deny(code=418, reason="Teapot", message="no coffee"))
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
        bench.stranger.judges["no"] = deny(**status)
        answer = await bench.note(what, await create(bench, "a"))
        assert answer.status >= 400
    bench.notes.append(answer.body.get("details"))


async def denied_by_mutating(bench: Bench) -> None:
    """A mutating webhook may refuse too, and then none after it is asked."""
    await bench.hook("no", deny(message="never"), mutating=True, more={"later": allow()})
    refused = await bench.note("create", await create(bench, "a"))
    assert "denied the request: never" in refused.body["message"]
    bench.asked("later")
    assert "later" not in bench.stranger.asked


async def mutated(bench: Bench) -> None:
    """What a mutating webhook makes is stored and seen by the next; unknown fields are gone."""
    first = patch(
        {"op": "add", "path": "/data", "value": {"added": "yes"}},
        {"op": "add", "path": "/nonsense", "value": {"deep": 1}},
        {"op": "add", "path": "/metadata/labels", "value": {"one": "1"}},
    )
    await bench.hook(
        "first", first, mutating=True, more={"second": annotate("two", "2"), "third": patch()}
    )
    made = await bench.note("create", await create(bench, "a", x="gone"))
    assert made.body["data"] == {"added": "yes"}
    assert made.body["metadata"]["annotations"] == {"two": "2"}
    assert "nonsense" not in made.body
    read = await bench.note("read", await bench.ask("GET", one(bench, "a")))
    assert read.body == made.body
    changed = await bench.ask("PATCH", one(bench, "a"), {"data": {"y": "1"}}, kind=MERGE_PATCH)
    await bench.note("patch", changed)
    bench.asked("first", "second", "third")


async def defaulted(bench: Bench) -> None:
    """Defaults are set in what a webhook adds before the next one sees it."""
    port = {"op": "add", "path": "/spec/ports/-", "value": {"name": "b", "port": 81}}
    await bench.hook(
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
    made = await bench.note("create", await bench.ask("POST", f"{bench.here}/services", service))
    assert made.body["spec"]["ports"][1]["protocol"] == "TCP"
    seen = bench.stranger.asked["looks"][-1]["object"]["spec"]["ports"][1]
    assert (seen["targetPort"], seen["protocol"]) == (81, "TCP")
    bench.asked("looks")


async def bad_patches(bench: Bench) -> None:
    """A patch that is none, or does not fit, fails the write; the policy has no say in most."""
    await bench.hook("closed", mutating=True)
    await bench.hook("open", mutating=True, failurePolicy="Ignore")
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
            bench.stranger.judges.update(closed=allow(), open=allow())
            bench.stranger.judges[name] = response
            answer = await create(bench, "a", query=DRY)
            bench.notes.append((what, name, answer.refusal[:2]))


async def bad_answers(bench: Bench) -> None:
    """An answer that is none counts as a failed call."""
    await bench.hook("odd", mutating=True)
    await bench.hook("strange")
    for what, name, response in BAD_ANSWERS:
        bench.stranger.judges.update(odd=allow(), strange=allow())
        bench.stranger.judges[name] = response
        answer = await create(bench, "a", query=DRY)
        assert answer.refusal[:2] == (500, "InternalError"), (what, answer)
        message = bench.plain(answer.body["message"])
        start, called, _ = message.partition("failed to call webhook: ")
        message = start + called if called else message  # what follows is a parser's own words
        bench.notes.append((what, answer.refusal[:2], message))
        assert f'failed calling webhook "{name}.zonewise.io": ' in message


async def failing_open(bench: Bench) -> None:
    """With the policy Ignore a failed call is as if the webhook were not there."""
    await bench.hook("odd", mutating=True, failurePolicy="Ignore")
    await bench.hook("strange", failurePolicy="Ignore")
    for what, name, response in BAD_ANSWERS:
        bench.stranger.judges.update(odd=allow(), strange=allow())
        bench.stranger.judges[name] = response
        answer = await bench.note(what, await create(bench, "a", query=DRY))
        assert answer.status == 201


async def slow(bench: Bench) -> None:
    """A webhook that is slower than its timeout was not asked; its policy decides."""

    def sleepy(_: Obj) -> Obj:
        bench.stranger.gate.wait(20)
        return {"allowed": False}

    await bench.hook("closed", sleepy, timeoutSeconds=1)
    refused = await bench.note("fail", await create(bench, "a"))
    assert refused.refusal[:2] == (500, "InternalError")
    assert "context deadline exceeded" in refused.body["message"]
    assert bench.stranger.paths[-1] == "/closed?timeout=1s"


async def slashed(bench: Bench) -> None:
    """Empty steps, dots and a last slash of a webhook's path are not sent."""
    for number, text in enumerate(("//seen", "/./a/../seen", "/seen/")):
        client = bench.client("seen") | {"url": bench.web.url + text}
        await bench.hook("seen", configuration=f"c{number}", clientConfig=client)
        made = await create(bench, f"a{number}")
        assert made.status == 201, made
    bench.notes.append([path.partition("?")[0] for path in bench.stranger.paths])
    assert {path.partition("?")[0] for path in bench.stranger.paths} == {"/seen"}


async def redirected(bench: Bench) -> None:
    """A webhook that sends elsewhere with 307 or 308 is asked there, and heard."""
    bench.stranger.judges["there"] = deny(message="found")
    for status in (307, 308):
        for number, target in enumerate(("/there", f"{bench.web.url}/there", "there")):
            moved = Reply(status=status, headers={"Location": target})
            await bench.hook(f"moved{status}{number}", _replies(moved))
            answer = await bench.note(
                target.replace(bench.web.url, "URL"), await create(bench, "a")
            )
            assert answer.body["message"].endswith("denied the request: found"), answer
            bench.notes.append([path.partition("?")[0] for path in bench.stranger.paths])
            bench.stranger.paths.clear()
            await bench.unhook()
            bench.stranger.judges["there"] = deny(message="found")


async def misdirected(bench: Bench) -> None:
    """Who sends elsewhere without end, nowhere, or with another method is not heard."""
    for what, reply in (
        ("circle", Reply(status=307, headers={"Location": "/circle"})),
        ("nowhere", Reply(status=307)),
        ("get", Reply(status=302, headers={"Location": "/circle"})),
        ("scheme", Reply(status=307, headers={"Location": "ftp://127.0.0.1/circle"})),
    ):
        await bench.hook(what, _replies(reply))
        answer = await create(bench, "a", query=DRY)
        assert answer.refusal[:2] == (500, "InternalError")
        asked = sum(path.startswith(f"/{what}?") for path in bench.stranger.paths)
        bench.notes.append((what, answer.refusal[:2], asked))
        await bench.unhook()


async def slow_ignored(bench: Bench) -> None:
    """With the policy Ignore nobody waits longer than the timeout either."""

    def sleepy(_: Obj) -> Obj:
        bench.stranger.gate.wait(20)
        return {"allowed": False}

    await bench.hook("open", sleepy, timeoutSeconds=1, failurePolicy="Ignore")
    made = await bench.note("ignore", await create(bench, "a"))
    assert made.status == 201


async def unreachable(bench: Bench) -> None:
    """Where nobody listens, the refusal says where."""
    port = closed_port()
    client = {**bench.client("x"), "url": f"https://127.0.0.1:{port}/x"}
    await bench.hook("nowhere", clientConfig=client, rules=[rule("secrets")])
    refused = await bench.ask("POST", f"{bench.here}/secrets", secret("a"))
    message = refused.body["message"].replace(str(port), "GONE")
    bench.notes.append((refused.refusal[:2], message))
    assert "connection refused" in message
    await account(bench)
    unknown = {"url": f"{bench.web.url}/nowhere", "caBundle": _base64(STRANGE_CA)}
    await bench.hook("unknown", clientConfig=unknown, rules=[rule("pods")])
    refused = await bench.ask("POST", f"{bench.here}/pods", pod("a"))
    bench.notes.append((refused.refusal[:2], "x509: " in refused.body["message"]))
    assert "certificate" in refused.body["message"]
    service = {"service": {"namespace": bench.ns, "name": "no-such"}}
    await bench.hook("behind", clientConfig=service, rules=[rule("limitranges")])
    limits = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "a"}}
    refused = await bench.ask("POST", f"{bench.here}/limitranges", limits)
    await bench.note("no service", refused)


async def warned(bench: Bench) -> None:
    """Warnings reach the client, whether the write is allowed or refused."""
    await bench.hook("careful", allow(warnings=["mind the gap", 'and "this"']))
    made = await bench.note("allowed", await create(bench, "a"))
    assert made.warnings == ['299 - "mind the gap"', '299 - "and \\"this\\""']
    bench.stranger.judges["careful"] = lambda _: {"allowed": False, "warnings": ["too late"]}
    refused = await bench.note("refused", await create(bench, "b"))
    assert refused.warnings == ['299 - "too late"']
    bench.stranger.judges["careful"] = allow(warnings=["x" * 5000])
    long = await create(bench, "c")
    assert sum(map(len, long.warnings)) < 5000
    bench.notes.append(len(long.warnings))


async def dry_run(bench: Bench) -> None:
    """A dry run never reaches a webhook with side effects."""
    await bench.hook("clean", sideEffects="NoneOnDryRun")
    made = await bench.note("clean", await create(bench, "a", query=DRY))
    assert made.status == 201
    assert bench.stranger.asked["clean"][0]["dryRun"] is True
    bench.asked("clean")
    some = await bench.hook("some", sideEffects="Some")
    bench.notes.append(("effects", some.status))
    assert (await bench.ask("GET", one(bench, "a"))).status == 404


async def object_selector(bench: Bench) -> None:
    """An object selector looks at the object as it was and as it will be."""
    await bench.hook("red", objectSelector={"matchLabels": {"colour": "red"}})
    await bench.note("blue", await create(bench, "a", labels={"colour": "blue"}))
    assert "red" not in bench.stranger.asked
    for colour in ("red", "green", "blue"):
        change = {"metadata": {"labels": {"colour": colour}}}
        answer = await bench.ask("PATCH", one(bench, "a"), change, kind=MERGE_PATCH)
        await bench.note(colour, answer)
    assert len(bench.stranger.asked["red"]) == 2
    bench.asked("red")


async def namespace_selector(bench: Bench) -> None:
    """A namespace selector looks at the namespace's labels; a namespace has its own."""
    wanted = {"matchLabels": {"bench": bench.ns, "strict": "yes"}}
    label = {"metadata": {"labels": {"strict": "yes"}}}
    probe = {"matchLabels": {"bench": bench.ns}}
    space = f"/api/v1/namespaces/{bench.ns}"
    assert (await bench.ask("PATCH", space, label, kind=MERGE_PATCH)).status == 200
    await bench.hook("strict", namespaceSelector=wanted, rules=[rule("configmaps", "namespaces")])
    await bench.note("strict", await create(bench, "a"))
    assert len(bench.stranger.asked["strict"]) == 1
    change = {"metadata": {"labels": {"other": "x"}}}
    await bench.note("own", await bench.ask("PATCH", space, change, kind=MERGE_PATCH))
    assert bench.stranger.asked["strict"][-1]["namespace"] == bench.ns
    loose = {"metadata": {"labels": {"strict": None}}}
    await bench.note("loosened", await bench.ask("PATCH", space, loose, kind=MERGE_PATCH))
    assert len(bench.stranger.asked["strict"]) == 2, probe
    bench.asked("strict")


async def scope(bench: Bench) -> None:
    """A rule of one scope does not see the other; a namespace is cluster-scoped."""
    mine = {"matchLabels": {"mine": bench.ns}}
    everything = ("configmaps", "namespaces", "priorityclasses")
    groups = ("", "scheduling.k8s.io")
    for name, wanted in (("inside", "Namespaced"), ("outside", "Cluster"), ("both", "*")):
        await bench.hook(
            name,
            rules=[rule(*everything, groups=groups, scope=wanted)],
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
        kinds = [asked["kind"]["kind"] for asked in bench.stranger.asked[name]]
        bench.notes.append((name, kinds))
    bench.asked("both")
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
        await bench.hook(name, rules=[rule("configmaps"), rule(*resources, groups=("",))])
    await bench.hook("deletes", rules=[rule("configmaps"), rule("pods", operations=("DELETE",))])
    await bench.hook("other", rules=[rule("configmaps"), rule("pods", groups=("apps",))])
    await bench.hook("old", rules=[rule("configmaps"), rule("pods", versions=("v1beta1",))])
    for asked in bench.stranger.asked.values():
        asked.clear()
    made = await bench.ask("POST", f"{bench.here}/pods", pod("p"))
    assert made.status == 201, made
    change = {"status": {"phase": "Failed"}}
    path = f"{bench.here}/pods/p"
    assert (await bench.ask("PATCH", f"{path}/status", change, kind=MERGE_PATCH)).status == 200
    assert (await bench.ask("DELETE", path, gracePeriodSeconds="0")).status == 200
    for name in (*pods, "deletes", "other", "old"):
        # A real server may ask twice about one deletion that needs no grace.
        seen = dict.fromkeys(
            f"{one['operation']} {one.get('subResource', '')}"
            for one in bench.stranger.asked.get(name, [])
            if one["resource"]["resource"] == "pods"
        )
        bench.notes.append((name, list(seen)))
    assert dict(bench.notes)["below"] == ["CREATE ", "UPDATE status", "DELETE "]
    assert dict(bench.notes)["all"] == ["CREATE ", "DELETE "]
    assert dict(bench.notes)["statuses"] == ["UPDATE status"]
    assert dict(bench.notes)["deletes"] == ["DELETE "]
    assert not dict(bench.notes)["other"] and not dict(bench.notes)["old"]


async def match_policy(bench: Bench) -> None:
    """Equivalent versions are shown converted and changed back; exact rules see only their own."""
    probe = rule("configmaps")
    old = rule("horizontalpodautoscalers", groups=("autoscaling",), versions=("v1",))
    adds = patch({"op": "replace", "path": "/spec/targetCPUUtilizationPercentage", "value": 55})
    await bench.hook("equal", adds, mutating=True, rules=[probe, old], matchPolicy="Equivalent")
    await bench.hook("exact", rules=[probe, old], matchPolicy="Exact")
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
    made = await bench.note("create", await bench.ask("POST", path, scaler))
    target = made.body["spec"]["metrics"][0]["resource"]["target"]
    assert target["averageUtilization"] == 55
    question = bench.stranger.asked["equal"][-1]
    assert (question["kind"]["version"], question["requestKind"]["version"]) == ("v1", "v2")
    bench.asked("equal", "exact")
    assert "exact" not in bench.stranger.asked


async def conditions(bench: Bench) -> None:
    """Match conditions choose by what is written; a false one beats one that fails."""
    await bench.hook(
        "chosen",
        matchConditions=[
            {"name": "big", "expression": "object.?data.?x.orValue('') == 'big'"},
            {"name": "creates", "expression": "request.operation == 'CREATE'"},
        ],
    )
    await bench.note("small", await create(bench, "a", x="small"))
    assert "chosen" not in bench.stranger.asked
    await bench.note("big", await create(bench, "b", x="big"))
    assert len(bench.stranger.asked["chosen"]) == 1


async def failing_conditions(bench: Bench) -> None:
    """A condition that fails refuses the write or passes the webhook over."""
    fails = {"name": "fails", "expression": "object.data.nothing == 'x'"}
    false = {"name": "false", "expression": "request.operation == 'NEVER'"}
    await bench.hook("over", matchConditions=[fails], failurePolicy="Ignore")
    await bench.hook("decided", matchConditions=[fails, false])
    assert (await create(bench, "a", y="1")).status == 201
    assert not {"over", "decided"} & set(bench.stranger.asked)
    secrets = rule("secrets")
    await bench.hook("refused", matchConditions=[fails], rules=[secrets])
    refused = await bench.ask("POST", f"{bench.here}/secrets", secret("s"))
    bench.notes.append(refused.refusal[:2])
    assert refused.refusal[:2] == (403, "Forbidden")


async def reinvoked(bench: Bench) -> None:
    """A webhook that wants to know is asked again after a later one changed the object; once."""
    await bench.hook(
        "first",
        annotate("first", "1"),
        mutating=True,
        configuration="a",
        reinvocationPolicy="IfNeeded",
        more={"again": annotate("again", "1")},
    )
    await bench.hook("never", annotate("never", "1"), mutating=True, configuration="b")
    await bench.hook("last", mutating=True, configuration="c", reinvocationPolicy="IfNeeded")
    made = await bench.note("create", await create(bench, "a"))
    counts = {name: len(bench.stranger.asked[name]) for name in ("first", "again", "never", "last")}
    bench.notes.append(counts)
    assert counts == {"first": 2, "again": 2, "never": 1, "last": 1}
    assert set(made.body["metadata"]["annotations"]) == {"first", "again", "never"}
    bench.asked("first", "last")


async def deleted(bench: Bench) -> None:
    """Deletions are asked about with the object as it is, by both kinds of webhooks."""
    only = [rule("configmaps", operations=("DELETE",)), rule("configmaps", operations=("CREATE",))]
    await bench.hook("says", rules=only)
    await bench.hook("sees", mutating=True, rules=only)
    await create(bench, "a", x="1")
    bench.stranger.judges["says"] = deny(message="stay", code=403, reason="Forbidden")
    refused = await bench.note("refused", await bench.ask("DELETE", one(bench, "a")))
    assert refused.status == 403
    bench.stranger.judges["says"] = allow()
    bench.stranger.judges["sees"] = patch({"op": "add", "path": "/data", "value": {}})
    patched = await bench.note("patched", await bench.ask("DELETE", one(bench, "a")))
    assert "attempted to modify the object" in patched.body["message"]
    bench.stranger.judges["sees"] = allow()
    gone = await bench.note("gone", await bench.ask("DELETE", one(bench, "a")))
    assert gone.status == 200
    bench.asked("says", "sees")


async def deleted_together(bench: Bench) -> None:
    """A deletion of many is asked about object by object."""
    for name in ("a", "b"):
        await create(bench, name, labels={"set": "x"})
    await bench.hook("each", rules=[rule("configmaps")])
    await bench.hook("sees", mutating=True)
    path = f"{bench.here}/configmaps"
    gone = await bench.ask("DELETE", path, labelSelector="set=x")
    bench.notes.append(gone.status)
    bench.asked("each", "sees")
    assert len(bench.stranger.asked["each"]) == 2


async def generated(bench: Bench) -> None:
    """A name that is generated is not there for mutating webhooks and is for validating ones."""
    await bench.hook("before", mutating=True)
    await bench.hook("after")
    obj = config("")
    obj["metadata"] = {"generateName": "made-"}
    made = await bench.ask("POST", f"{bench.here}/configmaps", obj)
    assert made.status == 201
    before, after = bench.stranger.asked["before"][-1], bench.stranger.asked["after"][-1]
    assert "name" not in before and "name" not in before["object"]["metadata"]
    assert after["name"] == after["object"]["metadata"]["name"] == made.body["metadata"]["name"]
    bench.notes.append((sorted(before), sorted(after)))
    bench.notes.append((sorted(before["object"]["metadata"]), sorted(after["object"]["metadata"])))


async def several(bench: Bench) -> None:
    """Validating webhooks are all asked, whatever one of them says."""
    await bench.hook("a", deny(message="from a"), more={"b": allow(), "c": allow()})
    refused = await bench.note("create", await create(bench, "x"))
    assert "from a" in refused.body["message"]
    assert all(len(bench.stranger.asked[name]) == 1 for name in ("a", "b", "c"))


async def exempt(bench: Bench) -> None:
    """Webhook configurations are never a webhook's affair."""
    every = rule("*", groups=("*",))
    mine = {"matchLabels": {"mine": bench.ns}}
    await bench.hook("greedy", deny(), rules=[every], objectSelector=mine, namespaceSelector={})
    labels = {"mine": bench.ns}
    path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    obj = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"{bench.ns}-free", "labels": labels},
    }
    made = await bench.note("create", await bench.ask("POST", path, obj))
    assert made.status == 201
    await bench.note("delete", await bench.ask("DELETE", f"{path}/{bench.ns}-free"))
    refused = await bench.note("others", await create(bench, "a", labels=labels))
    assert refused.status == 400


async def old_reviews(bench: Bench) -> None:
    """A webhook that knows only the older review gets it."""
    await bench.hook("old", annotate("a", "b"), mutating=True, admissionReviewVersions=["v1beta1"])
    made = await bench.note("create", await create(bench, "a"))
    assert made.body["metadata"]["annotations"] == {"a": "b"}
    bench.asked("old")


async def custom(bench: Bench) -> None:
    """A custom resource is changed too: pruned, defaulted, and shown in the version asked for."""
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
    await bench.hook("adds", judge, mutating=True, more={"looks": allow()}, rules=rules)
    for version in ("v1", "v1alpha1"):
        path = f"/apis/{group}/{version}/namespaces/{bench.ns}/widgets"
        widget = {"apiVersion": f"{group}/{version}", "kind": "Widget", "spec": {"size": 1}}
        widget["metadata"] = {"name": version}
        await bench.served(path)
        made = await bench.ask("POST", path, widget)
        assert made.status == 201, made
        await bench.note("read", await bench.ask("GET", f"{path}/{version}"))
        assert made.body["spec"]["ports"] == [{"port": 1, "protocol": "TCP"}]
    kinds = [one["kind"] | {"group": ""} for one in bench.stranger.asked["adds"]]
    asked = [one["requestKind"]["version"] for one in bench.stranger.asked["adds"]]
    bench.notes.append((kinds, asked))
    assert asked == ["v1", "v1alpha1"]
    await bench.ask("DELETE", f"{definitions}/widgets.{group}")


async def scaled(bench: Bench) -> None:
    """Of a scale webhooks see the Scale, and may change the number."""
    rules = [rule("configmaps"), rule("deployments/scale", groups=("apps",))]
    await bench.hook("sees", rules=rules)
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
    await bench.hook("more", more, mutating=True, rules=rules)
    to = {"spec": {"replicas": 3}}
    await bench.note("to 3", await bench.ask("PATCH", f"{path}/d/scale", to, kind=MERGE_PATCH))
    assert (await bench.ask("GET", f"{path}/d")).body["spec"]["replicas"] == 5
    bench.asked("sees", "more")
    assert bench.stranger.asked["sees"][0]["object"]["kind"] == "Scale"


async def below(bench: Bench) -> None:
    """Bindings, evictions and tokens are asked about as what they are, not as what they do."""
    await account(bench)
    resources = ("pods/binding", "pods/eviction", "serviceaccounts/token", "pods/status", "pods")
    await bench.hook("sees", rules=[rule("configmaps"), rule(*resources)])
    await bench.hook("too", mutating=True, rules=[rule("configmaps"), rule(*resources[:3])])
    path = f"{bench.here}/pods/p"
    assert (await bench.ask("POST", f"{bench.here}/pods", pod("p"))).status == 201
    bench.stranger.asked["sees"].clear()
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}}
    binding["target"] = {"kind": "Node", "name": "somewhere"}
    await bench.note("bind", await bench.ask("POST", f"{path}/binding", binding))
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": ["a"], "expirationSeconds": 1000},
    }
    token = await bench.ask("POST", f"{bench.here}/serviceaccounts/default/token", request)
    assert token.status == 201
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    eviction["deleteOptions"] = {"gracePeriodSeconds": 0}
    bench.stranger.judges["sees"] = deny(message="not this one", code=403)
    await bench.note("refused", await bench.ask("POST", f"{path}/eviction", eviction))
    bench.stranger.judges["sees"] = allow()
    await bench.note("evict", await bench.ask("POST", f"{path}/eviction", eviction))
    bench.asked("sees", "too")
    seen = [f"{one['operation']} {one['kind']['kind']}" for one in bench.stranger.asked["sees"]]
    assert seen == ["CREATE Binding", "CREATE TokenRequest", *["CREATE Eviction"] * 2]


async def moved(bench: Bench) -> None:
    """A webhook may not make another object of it."""
    await bench.hook("moves", mutating=True)
    for what, path, value in (
        ("name", "/metadata/name", "other"),
        ("namespace", "/metadata/namespace", "default"),
        ("uid", "/metadata/uid", "1-2-3"),
        ("owners", "/metadata/managedFields", [{"manager": "x"}]),
        ("version", "/metadata/resourceVersion", "1"),
    ):
        bench.stranger.judges["moves"] = allow()
        await create(bench, what)
        bench.stranger.judges["moves"] = patch({"op": "add", "path": path, "value": value})
        made = await create(bench, f"{what}-new")
        changed = await bench.ask(
            "PATCH",
            one(bench, what),
            [{"op": "add", "path": "/data", "value": {"x": "y"}}],
            kind=JSON_PATCH,
        )
        bench.notes.append((what, made.status, made.body.get("reason"), made.warnings))
        bench.notes.append((what, changed.status, changed.body.get("reason")))
        bench.stranger.judges["moves"] = allow()


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
    return await bench.ask("POST", f"{bench.here}/configmaps", obj, **(query or {}))


async def account(bench: Bench) -> None:
    """Make the service account that pods run as, where no controller does."""
    obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    await bench.ask("POST", f"{bench.here}/serviceaccounts", obj)


def one(bench: Bench, name: str) -> str:
    """The path of a ConfigMap."""
    return f"{bench.here}/configmaps/{name}"


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
