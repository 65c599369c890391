"""Each pod behind a slot's Service is asked what it serves, and a mixture of models is refused by name."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from k8s.client import Refused
from pipeline.rollout.reconcile import slot_of

from .cluster.faults import Fault
from .cluster.server import api_server
from .slotted import SPACE, A, B, C, SlottedCluster, url_host


@pytest.fixture
def slotted(tmp_path: Path) -> Iterator[SlottedCluster]:
    with api_server() as server:
        yield SlottedCluster(server, tmp_path)


def pods(slotted: SlottedCluster, served: Mapping[str, str | Exception], slices: int = 1) -> None:
    slotted.run("slot-b", len(served))
    slotted.list_pods("slot-b", served, slices=slices)


@pytest.mark.parametrize("slices", [1, 2])
def test_each_ready_pod_is_asked_once(slotted: SlottedCluster, slices: int) -> None:
    pods(slotted, dict.fromkeys(("10.0.0.7", "10.0.0.8", "fd00::9"), B.digest), slices)
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, ready.reason) == (B.digest, 3, "")
    assert sorted(slotted.asked) == [(f"http://{host}:8000/v1", 1) for host in ("10.0.0.7", "10.0.0.8", "[fd00::9]")]


def test_a_mixture_of_models_is_refused_by_name(slotted: SlottedCluster) -> None:
    pods(slotted, {"10.0.0.7": B.digest, "10.0.0.8": A.digest, "10.0.0.9": B.digest})
    ready = slotted.port().ready(B)
    named = "pod-0 bbbbbbbbbbbb, pod-1 aaaaaaaaaaaa, pod-2 bbbbbbbbbbbb"
    assert f"slot-b: its pods serve different models ({named})" in ready.reason
    assert slot_of(slotted.port(), B).wrong, "a canary of two models gets no requests"


def test_pods_that_all_serve_another_model_are_wrong(slotted: SlottedCluster) -> None:
    pods(slotted, {"10.0.0.7": A.digest, "10.0.0.8": A.digest})
    assert "was given model bbbbbbbbbbbb and serves aaaaaaaaaaaa" in slotted.port().ready(B).reason
    assert slot_of(slotted.port(), B).wrong


def test_a_pod_that_is_away_is_named_and_the_slot_not_down(slotted: SlottedCluster) -> None:
    pods(slotted, {"10.0.0.7": B.digest, "10.0.0.8": ConnectionError("refused")})
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, ready.reason) == (B.digest, 1, "slot-b: pod-1: refused")
    state = slot_of(slotted.port(), B)
    assert state.reason and not state.down and not state.wrong


@pytest.mark.parametrize("error", [ConnectionError("refused"), ValueError("answers of no model")])
def test_a_slot_whose_pods_all_fail_is_down(slotted: SlottedCluster, error: Exception) -> None:
    pods(slotted, {"10.0.0.7": error, "10.0.0.8": error})
    assert slot_of(slotted.port(), B).down
    assert f"pod-0: {error}; pod-1: {error}" in slotted.port().ready(B).reason


def test_a_pod_of_no_known_model_is_not_passed_over(slotted: SlottedCluster) -> None:
    pods(slotted, {"10.0.0.7": B.digest, "10.0.0.8": ValueError("answers of no model")})
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.reason) == ("", "slot-b: pod-1: answers of no model")


def test_pods_that_are_not_ready_are_not_asked(slotted: SlottedCluster) -> None:
    slotted.list_pods("slot-b", {"10.0.0.7": B.digest}, ready=False)
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas, slotted.asked) == ("", 0, [])
    assert "its Service has 0 of 1 ready pods" in ready.reason


def test_a_pod_without_an_address_yet_is_waited_for(slotted: SlottedCluster) -> None:
    slotted.run("slot-b", 2)
    slotted.list_pods("slot-b", {"10.0.0.7": B.digest})
    ready = slotted.port().ready(B)
    assert (ready.served_digest, ready.replicas) == (B.digest, 1)
    assert "its Service has 1 of 2 ready pods, and the others are not known" in ready.reason


def test_another_slots_pods_are_not_asked(slotted: SlottedCluster) -> None:
    slotted.list_pods("slot-a", {"10.0.0.6": A.digest})
    pods(slotted, {"10.0.0.7": B.digest})
    assert slotted.port().ready(B).reason == ""
    assert slotted.asked == [("http://10.0.0.7:8000/v1", 1)]


def test_without_the_right_to_list_the_service_is_asked_thrice(slotted: SlottedCluster) -> None:
    pods(slotted, {"10.0.0.7": B.digest})
    slotted.server.faults.add(Fault(verb="list", kind="EndpointSlice", status=403, times=0))
    assert slotted.port().ready(B).reason == ""
    assert slotted.asked == [(f"http://slot-b.{SPACE}.svc:8000/v1", 3)]
    slotted.server.faults.clear()
    slotted.server.faults.add(Fault(verb="list", kind="EndpointSlice", status=401, times=0))
    with pytest.raises(Refused):
        slotted.port().ready(B)


def test_a_model_without_a_slot_asks_nobody(slotted: SlottedCluster) -> None:
    assert "no slot holds" in slotted.port().ready(C).reason and slotted.asked == []
    assert url_host("fd00::1") == "[fd00::1]"
