"""The ports of a cluster over an API in memory: fences, drift, others' rules; and of the HTTPRoute what a gateway says
and what the shipped slots serve."""

from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import pytest
import yaml

from k8s.route import HTTP_ROUTE
from k8s.slots import CONFIG_MAP, DEPLOYMENT
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.rollout.reconcile import slot_of
from pipeline.rollout.router import Split, Unsettled, asked_for
from pipeline.serving.inference import served_dtype

from .manifests import build, named
from .pooled import PooledCluster
from .slotted import A, B, C, SlottedCluster, key, split

Cluster = SlottedCluster | PooledCluster
Spoil = Callable[[SlottedCluster], object]


@pytest.fixture
def slotted() -> SlottedCluster:
    return SlottedCluster()


@pytest.fixture(params=[SlottedCluster, PooledCluster])
def cluster(request: pytest.FixtureRequest) -> Generator[Cluster]:
    with ExitStack() as stack:
        yield request.param() if request.param is SlottedCluster else request.param(stack)


def read(cluster: Cluster) -> Split:
    cluster.obey()
    result = cluster.port().read()
    assert isinstance(result, Split), result
    return result


def before_the_patch(cluster: Cluster, do: Callable[[], object], times: int = 1) -> None:
    left = [times]

    def fault(verb: str, path: str) -> None:
        if verb == "PATCH" and cluster.ROUTING.plural in path and left[0]:
            left[0] -= 1
            do()

    cluster.fault = fault


def test_applied_weights_are_read_back(cluster: Cluster) -> None:
    assert cluster.port().read() is None, "no rollout ever asked for anything"
    for epoch, weight in enumerate((0, 5, 25, 100, 0), start=3):
        cluster.port().apply(split(weight, epoch))
        assert cluster.shares() == (100 - weight, weight)
        assert (read(cluster).epoch, read(cluster).canary_weight) == (epoch, weight)


def test_an_earlier_epoch_has_no_effect(cluster: Cluster) -> None:
    cluster.port().apply(split(0, epoch=9))
    before = cluster.routing()
    cluster.port().apply(split(25, epoch=8))
    assert cluster.routing() == before
    cluster.port().apply(split(0, epoch=9))
    assert cluster.routing() == before, "what is in force already is not written again"


def test_the_newest_of_racing_epochs_is_in_force(cluster: Cluster) -> None:
    """One gets ahead between the other's read and its patch, whichever of the two is the newer."""
    for newer, older in ((5, 4), (6, 7)):
        before_the_patch(cluster, lambda e=older: cluster.port().apply(split(e * 2, epoch=e, rollout=f"r{e}")))
        cluster.port().apply(split(newer * 2, epoch=newer, rollout=f"r{newer}"))
        last = max(newer, older)
        now = read(cluster)
        assert (now.rollout, now.epoch, now.canary_weight) == (f"r{last}", last, last * 2), "all of one apply"


@pytest.mark.slow
def test_a_conflict_with_an_operator_is_tried_again(cluster: Cluster) -> None:
    before_the_patch(cluster, lambda: cluster.operate(noted="new"))
    cluster.port().apply(split(5, epoch=1))
    assert cluster.routing()["spec"]["noted"] == "new", "the operator's change is kept"
    assert cluster.shares() == (95, 5)
    before_the_patch(cluster, lambda: cluster.operate(noted="again"), times=1000)
    with pytest.raises(ConnectionError, match="changed by others in each of 60 tries"):
        cluster.port().apply(split(6, epoch=2))


@pytest.mark.parametrize("weights", [(95, 95), (33, 68)])
def test_weights_that_are_no_percentages_are_refused(cluster: Cluster, weights: tuple[int, int]) -> None:
    cluster.port().apply(split(5, epoch=2))
    cluster.set_shares(*weights)
    with pytest.raises(ValueError, match=f"{weights[0]}, .* {weights[1]}.* sum to 100"):
        cluster.port().read()
    cluster.port().apply(split(0, epoch=3))
    assert cluster.shares() == (100, 0), "a rollback does not need readable weights"


def test_a_weight_lowered_by_hand_stays(cluster: Cluster) -> None:
    cluster.port().apply(split(5, epoch=2))
    cluster.set_shares(100, 0)
    asked = asked_for(cluster.port().read())
    assert asked is not None and (asked.epoch, asked.canary_weight) == (2, 0)
    cluster.port().apply(split(5, epoch=2))  # a tick that read it before
    assert cluster.shares() == (100, 0)
    cluster.port().apply(split(5, epoch=3))
    assert cluster.shares() == (95, 5)


def test_rules_of_others_are_left_as_they_are(cluster: Cluster) -> None:
    cluster.share_with_others()
    theirs = cluster.routing()["spec"]["rules"][0]
    for epoch, weight in enumerate((5, 25, 0), start=1):
        cluster.port().apply(split(weight, epoch))
        assert cluster.routing()["spec"]["rules"][0] == theirs
        assert cluster.shares() == (100 - weight, weight)


def another_gateway(slotted: SlottedCluster) -> None:
    slotted.obey()
    before = slotted.route()["status"]
    slotted.operate(parentRefs=[*slotted.route()["spec"]["parentRefs"], {"name": "inside"}])
    for row in before["parents"][0]["conditions"]:
        row["observedGeneration"] = slotted.route()["metadata"]["generation"]
    slotted.change(key(HTTP_ROUTE, "model"), status=before)


def fell_back(slotted: SlottedCluster) -> None:
    slotted.obey()
    status = slotted.route()["status"]
    status["parents"][0]["conditions"].append({"type": "PartiallyInvalid", "message": "Fall Back: rule 0"})
    slotted.change(key(HTTP_ROUTE, "model"), status=status)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: None, "gateway gateway-system/gateway is at generation 1 of the route, not 2"),
        (lambda s: s.obey(Accepted="False"), "gateway gateway-system/gateway says Accepted False: BackendNotFound"),
        (lambda s: s.obey(ResolvedRefs="False"), "gateway gateway-system/gateway says ResolvedRefs False"),
        (lambda s: s.change(key(HTTP_ROUTE, "model"), status={}), "has not said anything about the route"),
        (another_gateway, "gateway preference-tuning-serving/inside has not said anything"),
        (fell_back, "routes by an earlier generation of the route: Fall Back: rule 0"),
    ],
    ids=["lags", "not accepted", "unresolved", "silent", "one of two", "fell back"],
)
def test_every_gateway_has_to_take_the_route(slotted: SlottedCluster, spoil: Spoil, words: str) -> None:
    slotted.port().apply(split(5, epoch=2))
    spoil(slotted)
    result = slotted.port().read()
    assert isinstance(result, Unsettled) and words in result.reason


def backends(*names: str, weight: int = 1) -> list[dict[str, Any]]:
    return [{"backendRefs": [{"name": name, "port": 8000, "weight": weight} for name in names]}]


def share(slotted: SlottedCluster, *rules: dict[str, Any]) -> None:
    """Rules of others before the rollout's own."""
    slotted.operate(rules=[*rules, *slotted.route()["spec"]["rules"]])


def third(slotted: SlottedCluster) -> None:
    rules = slotted.route()["spec"]["rules"]
    rules[0]["backendRefs"] += [{"name": "mirror", "port": 8000, "weight": 3}]
    slotted.operate(rules=rules)


UNASKED = {"name": "model", "annotations": {"preference-tuning/rollout": ""}}
LOST: dict[str, tuple[Spoil, str]] = {
    "third backend": (third, "also sends requests for the slots to mirror 3"),
    "other weights": (lambda s: share(s, *backends("slot-b", "slot-a")), r"Rules \[0, 1\] of .* weights that differ"),
    "no slot": (lambda s: s.lose(CONFIG_MAP, "slot-b"), "no configmap slot-b"),
    "no deployment": (lambda s: s.lose(DEPLOYMENT, "slot-b"), "no deployment slot-b"),
    "one model in both": (lambda s: s.hold("slot-b", A), "slot-a and slot-b both hold model aaaaaaaaaaaa"),
}
FOREIGN: dict[str, tuple[Spoil, str]] = LOST | {
    "no epoch": (
        lambda s: s.change(key(HTTP_ROUTE, "model"), metadata=UNASKED),
        "no annotation preference-tuning/epoch",
    ),
    "no route": (lambda s: s.lose(HTTP_ROUTE, "model"), "no HTTPRoute preference-tuning-serving/model"),
    "one backend": (lambda s: s.operate(rules=backends("slot-a")), r"its rules have the backends \[\['slot-a'\]\]"),
    "each in a rule": (
        lambda s: s.operate(rules=backends("slot-a") + backends("slot-b")),
        "No rule of HTTPRoute preference-tuning-serving/model lists both slot-a and slot-b",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_route_that_is_not_as_shipped_is_refused(slotted: SlottedCluster, case: str) -> None:
    spoil, words = FOREIGN[case]
    slotted.port().apply(split(5, epoch=1))
    spoil(slotted)
    patches = slotted.count("PATCH")
    with pytest.raises(ValueError, match=words):
        slotted.port().read()
    with pytest.raises(ValueError, match=words):
        slotted.port().apply(split(25, epoch=2))
    assert slotted.count("PATCH") == patches
    if case in LOST:  # the way back needs the champion's slot alone
        slotted.port().apply(split(0, epoch=2))
        for rule in slotted.route()["spec"]["rules"]:
            weights = {row["name"]: row["weight"] for row in rule["backendRefs"]}
            assert (weights["slot-a"], weights["slot-b"]) == (100, 0)


def test_a_broken_rule_of_others_keeps_no_canary_in_traffic(slotted: SlottedCluster) -> None:
    """Its backend is gone: the gateway says of the whole route that it does not resolve."""
    port = slotted.port()
    port.apply(split(5, epoch=1))
    share(slotted, *backends("gone"))
    slotted.obey(ResolvedRefs="False")
    assert isinstance(port.read(), Unsettled), "whose backend does not resolve is not known"
    port.apply(split(0, epoch=2, other=None))
    assert isinstance(port.read(), Unsettled), "the gateway has not taken the weight yet"
    slotted.obey(ResolvedRefs="False")
    back = port.read()
    assert isinstance(back, Split) and back.canary_weight == 0
    port.apply(split(0, epoch=2, other=None))
    assert slotted.wanted("slot-b") == 0, "and its servers end"


def test_a_model_that_no_slot_holds_gets_no_weight(slotted: SlottedCluster) -> None:
    with pytest.raises(ValueError, match=r"5% is for cccccccccccc, and no slot holds it: slot-a holds aaaaaaaaaaaa"):
        slotted.port().apply(split(5, epoch=1, other=C))
    slotted.hold("slot-b", C)
    slotted.set_shares(95, 5)
    slotted.port().apply(split(0, epoch=2))
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}, "a lost canary does not stand in the way back"


def local(model: ModelRef) -> ModelRef:
    """As the rollout names it: where it was trained."""
    return ModelRef(uri=f"/data/{model.digest}", digest=model.digest)


def test_a_candidate_is_loaded_into_the_free_slot(slotted: SlottedCluster) -> None:
    port, wanted = slotted.port(), split(0, epoch=2, other=local(C))
    port.apply(split(5, epoch=1))
    slotted.obey()
    slotted.scale("slot-a", 3)
    port.apply(wanted)
    assert slotted.wanted("slot-b") == 1, "the gateway may still send requests there"
    slotted.obey()
    port.apply(wanted)
    assert slotted.wanted("slot-b") == 0 and "no slot holds cccccccccccc" in port.ready(C).reason
    port.apply(wanted)
    assert slotted.data("slot-b")["MODEL_DIGEST"] == B.digest, "its pods end first"
    slotted.run("slot-b", 0)
    port.apply(wanted)
    assert slotted.data("slot-b") == {
        "MODEL_URI": C.uri,
        "MODEL_DIGEST": C.digest,
        "SERVED_MODEL_NAME": "model@cccccccccccc",
        "MODEL_NAME": "model",
    }
    assert slotted.wanted("slot-b") == 3, "as many servers as the champion's, before any weight"
    patches = slotted.count("PATCH")
    port.apply(wanted)
    assert slotted.count("PATCH") == patches
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}


def test_servers_end_after_their_weight_is_gone(slotted: SlottedCluster) -> None:
    port, over = slotted.port(), split(0, epoch=2, other=None)
    port.apply(split(5, epoch=1))
    slotted.obey()
    for _ in range(2):
        port.apply(over)
        assert slotted.weights() == {"slot-a": 100, "slot-b": 0}
        assert slotted.wanted("slot-b") == 1, "the gateway has not taken the weight yet"
    assert read(slotted).warm == B
    port.apply(over)
    assert slotted.wanted("slot-b") == 0 and read(slotted).warm is None


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s.list_pods("slot-b", {"10.0.0.7": ValueError("no known model")}), "slot-b: pod-0: no known model"),
        (lambda s: s.run("slot-b", 0), "none of 1 pods is ready"),
        (lambda s: s.run("slot-b", 2, lag=1), "none of 1 pods is ready"),
        (lambda s: s.hold("slot-b", C), "no slot holds bbbbbbbbbbbb"),
    ],
    ids=["unknown model", "no pods", "stale status", "another slot"],
)
def test_a_slot_that_is_not_ready_gives_its_reason(slotted: SlottedCluster, spoil: Spoil, words: str) -> None:
    spoil(slotted)
    assert words in slotted.port().ready(B).reason


@pytest.mark.parametrize("slices", [1, 2])
def test_each_ready_pod_is_asked_once(slotted: SlottedCluster, slices: int) -> None:
    slotted.list_pods("slot-a", {"10.0.0.6": A.digest})
    slotted.run("slot-b", 3)
    slotted.list_pods("slot-b", dict.fromkeys(("10.0.0.7", "10.0.0.8", "fd00::9"), B.digest), slices=slices)
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, ready.reason) == (B.digest, 3, "")
    hosts = ("10.0.0.7", "10.0.0.8", "[fd00::9]")
    assert sorted(slotted.identified) == [f"http://{host}:8000/v1" for host in hosts]


AWAY, STRANGE = ConnectionError("refused"), ValueError("answers of no model")
MIXED = "pod-0 bbbbbbbbbbbb, pod-1 aaaaaaaaaaaa, pod-2 bbbbbbbbbbbb"


@pytest.mark.parametrize(
    ("served", "replicas", "words", "state"),
    [
        ([B.digest, A.digest, B.digest], 3, f"slot-b: its pods serve different models ({MIXED})", "wrong"),
        ([A.digest, A.digest], 2, "was given model bbbbbbbbbbbb and serves aaaaaaaaaaaa", "wrong"),
        ([B.digest, AWAY], 1, "slot-b: pod-1: refused", "up"),
        ([AWAY, AWAY], 0, "pod-0: refused; pod-1: refused", "down"),
        ([STRANGE, STRANGE], 0, "pod-0: answers of no model; pod-1: answers of no model", "down"),
        ([B.digest, STRANGE], 1, "slot-b: pod-1: answers of no model", "down"),
    ],
)
def test_what_pods_serve_decides_about_their_slot(
    slotted: SlottedCluster, served: list[str | Exception], replicas: int, words: str, state: str
) -> None:
    slotted.run("slot-b", len(served))
    slotted.list_pods("slot-b", {f"10.0.0.{n}": each for n, each in enumerate(served)})
    ready, slot = slotted.port().ready(B), slot_of(slotted.port(), B)
    assert words in ready.reason and ready.replicas == replicas
    assert (slot.wrong, slot.down) == (state == "wrong", state == "down")


def test_pods_that_are_not_listed_as_ready_are_not_known(slotted: SlottedCluster) -> None:
    slotted.list_pods("slot-b", {"10.0.0.7": B.digest}, ready=False)
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, slotted.identified) == ("", 0, [])
    assert "its Service has 0 of 1 ready pods" in ready.reason
    slotted.run("slot-b", 2)
    slotted.list_pods("slot-b", {"10.0.0.7": B.digest})
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas) == (B.digest, 1)
    assert "its Service has 1 of 2 ready pods, and the others are not known" in ready.reason


def test_the_port_fills_the_shipped_slots() -> None:
    """From nothing to a champion that has everything and a canary that waits for its weight."""
    slotted = SlottedCluster(None, None)
    port, champion, canary = slotted.port(), *(ModelRef(uri=f"/{x}", digest=x * 64) for x in "ab")
    assert port.read() is None
    port.apply(split(0, epoch=1, champion=champion, other=None))
    slotted.obey()
    wanted = split(0, epoch=2, champion=champion, other=canary)
    for _ in range(2):
        port.apply(wanted)
    slotted.obey()
    own = {name: ModelRef(uri=slotted.location(model), digest=model.digest)
           for name, model in (("champion", champion), ("canary", canary))}  # fmt: skip
    assert port.read() == wanted.model_copy(update=own)
    assert [slotted.wanted(name) for name in ("slot-a", "slot-b")] == [1, 1]
    keys = {"MODEL_URI", "MODEL_DIGEST", "SERVED_MODEL_NAME", "MODEL_NAME"}
    assert slotted.data("slot-b").keys() == keys, "the port writes what the shipped pods read"


def test_the_rollout_acts_on_the_route_and_its_slots_alone() -> None:
    section = HttpRouteTraffic()
    for rule in named(build("serving"), "Role", "rollout")["rules"]:
        slots = list(section.slots)
        if rule["verbs"] == ["list"]:  # which no name can restrict
            continue
        assert rule["resourceNames"] == ([section.route] if rule["resources"] == ["httproutes"] else slots)


def test_the_slots_differ_by_their_weights_alone() -> None:
    a, b = (named(build("serving"), "Deployment", name) for name in ("slot-a", "slot-b"))
    assert yaml.safe_load(yaml.safe_dump(b).replace("slot-b", "slot-a")) == a
    (server,) = a["spec"]["template"]["spec"]["containers"]
    assert f"--dtype={served_dtype(on_gpu=True)}" in server["args"], "as the gate measured them"
    place = server["args"].index("--served-model-name")
    assert server["args"][place + 1 : place + 3] == ["$(SERVED_MODEL_NAME)", "$(MODEL_NAME)"]
