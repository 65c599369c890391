"""The HTTPRoute port on the tests' API server: fences, drift, what a gateway says, routes that are not as shipped."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from k8s.client import Refused
from pipeline.core.storage import ModelRef
from pipeline.rollout.router import Split, Unsettled, asked_for

from .cluster.faults import Fault
from .cluster.server import api_server
from .slotted import SPACE, A, B, C, SlottedCluster, route, split


@pytest.fixture
def slotted(tmp_path: Path) -> Iterator[SlottedCluster]:
    with api_server() as server:
        yield SlottedCluster(server, tmp_path)


def read(slotted: SlottedCluster) -> Split:
    result = slotted.port().read()
    assert isinstance(result, Split), result
    return result


def test_route_without_rollout_reads_as_none(slotted: SlottedCluster) -> None:
    assert slotted.port().unit == "request"
    assert slotted.port().read() is None


def test_applied_weights_are_read_back_from_the_route(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=3))
    assert slotted.weights() == {"slot-a": 95, "slot-b": 5}
    slotted.obey()
    assert read(slotted) == split(5, epoch=3)


def test_a_promoted_model_keeps_its_slot(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(95, epoch=3))
    slotted.port().apply(split(0, epoch=4, champion=B, other=None))
    slotted.obey()
    assert slotted.weights() == {"slot-a": 0, "slot-b": 100}
    assert read(slotted) == split(0, epoch=4, champion=B, other=None).model_copy(update={"warm": A})


def test_an_earlier_epoch_has_no_effect(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(0, epoch=9))
    before = slotted.route()
    slotted.port().apply(split(25, epoch=8))
    assert slotted.route() == before
    slotted.port().apply(split(0, epoch=9))
    assert slotted.route() == before, "what is in force already is not written again"


@pytest.mark.slow
def test_the_newest_of_racing_epochs_is_in_force(slotted: SlottedCluster) -> None:
    failures: list[BaseException] = []
    ports = {epoch: slotted.port() for epoch in range(1, 21)}

    def race(epoch: int) -> None:
        try:
            ports[epoch].apply(split(epoch * 2, epoch=epoch, rollout=f"r{epoch}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=race, args=(epoch,)) for epoch in ports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slotted.obey()
    assert failures == []
    assert read(slotted) == split(40, epoch=20, rollout="r20"), "weights, epoch and rollout are of one apply"


def test_a_conflict_with_an_operator_is_tried_again(slotted: SlottedCluster) -> None:
    """The operator writes between the port's read and its patch."""
    written = []

    def between(number: int, call: Any, when: str) -> None:
        if call.verb == "patch" and when == "before" and not written:
            written.append(number)
            slotted.change(hostnames=["new.example.com"])

    slotted.server.faults.on_request = between
    slotted.port().apply(split(5, epoch=1))
    slotted.server.faults.clear()
    assert slotted.route()["spec"]["hostnames"] == ["new.example.com"], "the operator's change is kept"
    assert slotted.weights() == {"slot-a": 95, "slot-b": 5}
    assert slotted.server.count("patch") == 2


def test_a_refusal_that_is_no_race_is_raised(slotted: SlottedCluster) -> None:
    slotted.server.faults.add(Fault(verb="patch", kind="HTTPRoute", status=422, times=0))
    with pytest.raises(Refused):
        slotted.port().apply(split(5, epoch=1))
    assert slotted.server.count("patch") == 1


def test_a_patch_whose_answer_was_lost_is_not_undone(slotted: SlottedCluster) -> None:
    slotted.server.faults.add(Fault(verb="patch", kind="HTTPRoute", drop="after"))
    slotted.port().apply(split(5, epoch=1))
    slotted.obey()
    assert read(slotted) == split(5, epoch=1)


def test_the_second_apply_of_manifests_is_refused(slotted: SlottedCluster) -> None:
    """An operator who applies the shipped route again meets a conflict, and the weights stay."""
    shipped = route()
    slotted.server.storage.delete("HTTPRoute", SPACE, "model")
    slotted.server.storage.apply("HTTPRoute", SPACE, "model", shipped, "operator")
    slotted.port().apply(split(25, epoch=2))
    url = f"/apis/gateway.networking.k8s.io/v1/namespaces/{SPACE}/httproutes/model"
    again = httpx2.patch(
        slotted.server.url + url,
        params={"fieldManager": "operator"},
        json=shipped,
        headers={"Content-Type": "application/apply-patch+yaml", "Authorization": f"Bearer {slotted.server.token}"},
    )
    assert again.status_code == 409 and ".spec.rules" in again.text
    assert slotted.weights() == {"slot-a": 75, "slot-b": 25}


def test_an_operators_weights_are_read_as_they_are(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(25, epoch=2))
    slotted.set_weights(100, 0)
    slotted.obey()
    assert read(slotted) == split(0, epoch=2), "what routes, not what was asked for"


@pytest.mark.parametrize("weights", [(95, 95), (0, 0), (33, 68)])
def test_weights_that_are_no_percentages_are_refused(slotted: SlottedCluster, weights: tuple[int, int]) -> None:
    slotted.port().apply(split(5, epoch=2))
    slotted.set_weights(*weights)
    slotted.obey()
    with pytest.raises(ValueError, match=f"slot-a {weights[0]}, slot-b {weights[1]}: they do not sum to 100"):
        slotted.port().read()
    slotted.port().apply(split(0, epoch=3))
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}, "a rollback does not need readable weights"


def test_a_gateway_that_lags_a_generation_is_unsettled(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=2))
    result = slotted.port().read()
    assert isinstance(result, Unsettled) and "is at generation 1 of the route, not 2" in result.reason
    slotted.obey()
    assert isinstance(slotted.port().read(), Split)


def test_a_weight_lowered_while_the_gateway_lags_stays(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=2))
    slotted.set_weights(100, 0)
    asked = asked_for(slotted.port().read())
    assert asked is not None and (asked.epoch, asked.canary_weight) == (2, 0)
    slotted.port().apply(split(5, epoch=2))  # a tick that read it before
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}
    slotted.port().apply(split(5, epoch=3))
    assert slotted.weights() == {"slot-a": 95, "slot-b": 5}


@pytest.mark.parametrize("kind", ["Accepted", "ResolvedRefs"])
def test_a_gateway_that_refuses_is_unsettled(slotted: SlottedCluster, kind: str) -> None:
    slotted.port().apply(split(5, epoch=2))
    slotted.obey(0, **{kind: "False"})
    result = slotted.port().read()
    assert isinstance(result, Unsettled)
    assert result.reason == f"gateway gateway-system/gateway says {kind} False: BackendNotFound"


def test_every_gateway_has_to_take_the_route(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=2))
    slotted.obey()
    parents = slotted.route()["spec"]["parentRefs"]
    slotted.change(parentRefs=[*parents, {"name": "inside"}])
    obj = slotted.route()
    for row in obj["status"]["parents"][0]["conditions"]:
        row["observedGeneration"] = obj["metadata"]["generation"]
    slotted.server.storage.update("HTTPRoute", SPACE, obj, "status")
    result = slotted.port().read()
    assert isinstance(result, Unsettled) and "gateway serving/inside has not said anything" in result.reason


def backends(*names: str, **of: str) -> list[dict[str, Any]]:
    return [{"backendRefs": [{"name": name, "port": 8000, "weight": 1, **of} for name in names]}]


def without(key: str) -> Callable[[SlottedCluster], None]:
    def do(slotted: SlottedCluster) -> None:
        obj = slotted.route()
        del obj["metadata"]["annotations"][f"preference-tuning/{key}"]
        slotted.server.storage.update("HTTPRoute", SPACE, obj)

    return do


FOREIGN: dict[str, tuple[Callable[[SlottedCluster], object], str]] = {
    "third backend": (lambda s: s.change(rules=backends("slot-a", "slot-b", "mirror")), "the backend mirror beside"),
    "one backend": (lambda s: s.change(rules=backends("slot-a")), r"has the backends \['slot-a'\]"),
    "backend twice": (lambda s: s.change(rules=backends("slot-a", "slot-a")), "each once"),
    "second rule": (lambda s: s.change(rules=[*route()["spec"]["rules"], *backends("slot-a")]), "has 2 rules"),
    "no rules": (lambda s: s.change(rules=[]), "has 0 rules"),
    "foreign kind": (
        lambda s: s.change(rules=backends("slot-a", "slot-b", kind="Backend", group="gateway.envoyproxy.io")),
        "to Backend slot-a of group 'gateway.envoyproxy.io'",
    ),
    "no epoch": (without("epoch"), "has no annotation preference-tuning/epoch"),
    "no champion": (without("champion"), "has no annotation preference-tuning/champion"),
    "no route": (lambda s: s.server.storage.delete("HTTPRoute", SPACE, "model"), "no HTTPRoute serving/model"),
    "no slot": (lambda s: s.server.storage.delete("ConfigMap", SPACE, "slot-b"), "no configmap slot-b"),
    "no deployment": (lambda s: s.server.storage.delete("Deployment", SPACE, "slot-b"), "no deployment slot-b"),
    "one model in both": (lambda s: s.hold("slot-b", A), "slot-a and slot-b both hold model aaaaaaaaaaaa"),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_route_that_is_not_as_shipped_is_refused(slotted: SlottedCluster, case: str) -> None:
    spoil, words = FOREIGN[case]
    slotted.port().apply(split(5, epoch=1))
    spoil(slotted)
    patches = slotted.server.count("patch")
    with pytest.raises(ValueError, match=words):
        slotted.port().read()
    with pytest.raises(ValueError, match=words):
        slotted.port().apply(split(25, epoch=2))
    assert slotted.server.count("patch") == patches


LOST: dict[str, Callable[[SlottedCluster], object]] = {
    "no slot": lambda s: s.server.storage.delete("ConfigMap", SPACE, "slot-b"),
    "no deployment": lambda s: s.server.storage.delete("Deployment", SPACE, "slot-b"),
    "one model in both": lambda s: s.hold("slot-b", A),
}


@pytest.mark.parametrize("case", LOST)
def test_the_way_back_needs_the_champions_slot_alone(slotted: SlottedCluster, case: str) -> None:
    slotted.port().apply(split(5, epoch=1))
    LOST[case](slotted)
    slotted.port().apply(split(0, epoch=2))
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}


def test_pools_of_the_inference_extension_are_backends(slotted: SlottedCluster) -> None:
    pools = route("InferencePool", "inference.networking.k8s.io")["spec"]["rules"]
    slotted.change(rules=pools)
    slotted.port().apply(split(5, epoch=1))
    slotted.obey()
    assert read(slotted) == split(5, epoch=1)
    assert {row["kind"] for row in slotted.route()["spec"]["rules"][0]["backendRefs"]} == {"InferencePool"}


def test_an_absent_weight_counts_as_one(slotted: SlottedCluster) -> None:
    rules = route()["spec"]["rules"]
    for row in rules[0]["backendRefs"]:
        del row["weight"]
    slotted.change(rules=rules)
    slotted.port().apply(split(5, epoch=1))
    assert slotted.weights() == {"slot-a": 95, "slot-b": 5}


def test_a_model_that_no_slot_holds_gets_no_weight(slotted: SlottedCluster) -> None:
    with pytest.raises(ValueError, match=r"5% is for cccccccccccc, and no slot holds it: slot-a holds aaaaaaaaaaaa"):
        slotted.port().apply(split(5, epoch=1, other=C))
    slotted.hold("slot-b", C)
    slotted.set_weights(95, 5)
    slotted.port().apply(split(0, epoch=2))
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}, "a lost canary does not stand in the way back"


def test_a_slot_that_was_given_another_model_is_noticed(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=1))
    slotted.obey()
    slotted.hold("slot-b", C)
    with pytest.raises(ValueError, match="sends requests to slot-b 5, which holds neither"):
        slotted.port().read()


def test_a_server_that_is_away_raises_what_a_miss_is(slotted: SlottedCluster) -> None:
    port = slotted.port()
    with slotted.server.away():
        for call in (port.read, lambda: port.apply(split(5, epoch=1)), lambda: port.ready(A)):
            with pytest.raises(OSError, match="gave no usable answer"):
                call()


def test_a_slot_is_ready_by_what_it_serves(slotted: SlottedCluster) -> None:
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, ready.reason) == (B.digest, 1, "")
    assert slotted.asked == [(f"http://slot-b.{SPACE}.svc:8000/v1", 3)], "a Service chooses among its pods"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s.serves.update({"slot-b": A.digest}), "was given model bbbbbbbbbbbb and serves aaaaaaaaaaaa"),
        (lambda s: s.serves.update({"slot-b": ValueError("no model that is known")}), "slot-b: no model that is known"),
        (lambda s: s.serves.update({"slot-b": ConnectionError("refused")}), "slot-b: refused"),
        (lambda s: s.run("slot-b", 0), "none of 1 pods is ready"),
        (lambda s: s.run("slot-b", 2, lag=1), "none of 1 pods is ready"),
        (lambda s: s.hold("slot-b", C), "no slot holds bbbbbbbbbbbb"),
    ],
    ids=["another model", "unknown model", "no answer", "no pods", "stale status", "another slot"],
)
def test_a_slot_that_is_not_ready_gives_its_reason(
    slotted: SlottedCluster, spoil: Callable[[SlottedCluster], object], words: str
) -> None:
    spoil(slotted)
    assert words in slotted.port().ready(B).reason


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
    names = {"MODEL_URI": C.uri, "MODEL_DIGEST": C.digest, "SERVED_MODEL_NAME": "model@cccccccccccc"} | {
        "MODEL_NAME": "model"
    }
    assert slotted.data("slot-b") == names
    assert slotted.wanted("slot-b") == 3, "as many servers as the champion's, before any weight"
    patches = slotted.server.count("patch")
    port.apply(wanted)
    assert slotted.server.count("patch") == patches
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}


@pytest.mark.slow
def test_a_slot_with_traffic_is_not_taken(slotted: SlottedCluster) -> None:
    slotted.port().apply(split(5, epoch=1))
    slotted.set_weights(95, 5)
    slotted.server.faults.add(Fault(verb="patch", kind="HTTPRoute", status=503, times=0))
    with pytest.raises(OSError, match="gave no usable answer"):
        slotted.port().apply(split(0, epoch=2, other=C))
    assert slotted.data("slot-b")["MODEL_DIGEST"] == B.digest and slotted.wanted("slot-b") == 1


def test_the_champion_finds_a_slot_when_none_holds_it(slotted: SlottedCluster) -> None:
    """The first of a deployment: the route sends everything to a slot that was given nothing."""
    for name in ("slot-a", "slot-b"):
        slotted.hold(name, None)
        slotted.scale(name, 0)
        slotted.run(name, 0)
    port, first = slotted.port(), split(0, epoch=1, champion=local(C), other=None)
    port.apply(first)
    assert slotted.data("slot-a")["MODEL_DIGEST"] == C.digest and slotted.wanted("slot-a") == 1
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}


def test_servers_end_after_their_weight_is_gone(slotted: SlottedCluster) -> None:
    port = slotted.port()
    port.apply(split(5, epoch=1))
    slotted.obey()
    over = split(0, epoch=2, other=None)
    port.apply(over)
    assert slotted.weights() == {"slot-a": 100, "slot-b": 0}
    assert slotted.wanted("slot-b") == 1, "the gateway has not taken the weight yet"
    port.apply(over)
    assert slotted.wanted("slot-b") == 1
    slotted.obey()
    assert read(slotted).warm == B
    port.apply(over)
    assert slotted.wanted("slot-b") == 0 and read(slotted).warm is None


def test_the_way_back_stays_loaded_while_it_is_warm(slotted: SlottedCluster) -> None:
    port = slotted.port()
    port.apply(split(95, epoch=1))
    slotted.obey()
    promoted = split(0, epoch=2, champion=B, other=None)
    port.apply(promoted.model_copy(update={"warm": A}))
    slotted.obey()
    port.apply(promoted.model_copy(update={"warm": A}))
    assert slotted.wanted("slot-a") == 1
    port.apply(promoted)
    assert slotted.wanted("slot-a") == 0 and slotted.wanted("slot-b") == 1
