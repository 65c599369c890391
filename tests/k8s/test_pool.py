"""Both arms on one pool: adapters that come and go before and after their requests, pods that restart, refuse or are
away, objects that are in force or not, and the component `pool` as it is shipped."""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from k8s.lint import lint_objects
from k8s.lint.schemas import Schemas
from k8s.rewrite import ADAPTERS, MODEL_REWRITE
from pipeline.rollout.reconcile import slot_of
from pipeline.rollout.router import Split, Unsettled
from pipeline.serving.inference import served_dtype

from .manifests import MANIFESTS, RUNS, SERVING, Pods, dangling, idle_selectors, misnamed, named, objects_of, rights
from .pooled import NAMES, PATHS, PooledCluster
from .schemas import problems
from .slotted import B, C, key, split
from .test_manifests import from_outside

BASE, CANARY, OTHER = NAMES.values()
NOTED = {"LORA_BASE": BASE, "LORA_MODULES": f"{CANARY}={PATHS[CANARY]}"}
OWN = Schemas(Path(__file__).parent / "crds")


@pytest.fixture
def pool() -> Generator[PooledCluster]:
    with ExitStack() as stack:
        yield PooledCluster(stack)


def test_an_adapter_goes_once_nothing_names_it(pool: PooledCluster) -> None:
    port, over = pool.port(), split(0, epoch=2, other=None)
    port.apply(split(5, epoch=1))
    port.apply(over)
    assert all(CANARY in pod.loaded for pod in pool.pods.values()), "the picker may still name it"
    port.apply(over)
    assert all(not pod.loaded for pod in pool.pods.values()) and not pool.noted()
    for _ in range(2):
        port.apply(split(0, epoch=3, champion=B, other=None).model_copy(update={"warm": C}))
    assert all(pod.loaded.keys() == {CANARY, OTHER} for pod in pool.pods.values()), "the way back stays"


def test_a_pod_that_restarts_is_ready_once_it_holds_them(pool: PooledCluster) -> None:
    port, wanted = pool.port(), split(0, epoch=1)
    port.apply(wanted)
    assert [pod.loaded for pod in pool.pods.values()] == [{CANARY: PATHS[CANARY]}] * 2, "before any weight"
    pool.pods["pod-1"].loaded.clear()
    slot = slot_of(port, B)
    assert (slot.replicas, slot.down, slot.wrong) == (1, False, False) and f"pod-1 lacks {CANARY}" in slot.reason
    port.apply(wanted)
    assert slot_of(port, B).reason == "" and slot_of(port, B).replicas == 2
    assert pool.noted() == NOTED, "with which the next one starts"
    for name in pool.pods:
        pool.delete(("discovery.k8s.io", "endpointslices", name))
    port.apply(split(0, epoch=2, other=C))
    assert slot_of(port, C).down and pool.noted() == NOTED, "no pod has shown that it takes the adapter"


def test_a_pod_that_refuses_an_adapter_keeps_its_weight_at_0(pool: PooledCluster) -> None:
    port, pod = pool.port(), pool.pods["pod-1"]
    pod.max_rank = 8
    for weight in (0, 5):
        with pytest.raises(ValueError, match=r"pod-1: .*LoRA rank 16 is greater than max_lora_rank 8"):
            port.apply(split(weight, epoch=weight + 1))
    assert port.read() is None and not pool.noted(), "no pod would start with it"
    pod.max_rank = 16
    port.apply(split(5, epoch=6))
    assert pool.shares() == (95, 5)


@pytest.mark.parametrize("trouble", ["away", "no room"])
def test_a_rollback_waits_for_no_pod(pool: PooledCluster, trouble: str) -> None:
    port, pod = pool.port(), pool.pods["pod-0"]
    port.apply(split(100, epoch=1))
    pod.away, pod.max_rank = trouble == "away", 8
    pod.loaded.clear()
    with pytest.raises(ValueError, match="pod-0: "):
        port.apply(split(0, epoch=2))
    assert pool.shares() == (100, 0), "it is told, and the champion serves alone"


def test_an_adapter_over_another_base_is_not_loaded(pool: PooledCluster) -> None:
    """As after a promotion: the pods of before hold the older base, under which it would answer something else."""
    pool.pods["pod-1"].base = OTHER
    with pytest.raises(ValueError, match=f"pod-1: it holds {OTHER}, and {CANARY} is an adapter over {BASE}"):
        pool.port().apply(split(0, epoch=1, champion=C))
    assert not pool.pods["pod-1"].loaded
    with pytest.raises(ValueError, match=f"{BASE} is no adapter. Start the pool over a base"):
        pool.port().apply(split(0, epoch=1, other=None))
    assert pool.port().read() is None, "the first champion gets no requests where no pod holds it"


def older(pool: PooledCluster, created: str = "2026-02-28T00:00:00Z", of: str = "pool") -> None:
    obj = pool.routing()
    obj["metadata"] |= {"name": "older", "creationTimestamp": created}
    obj["spec"]["poolRef"]["name"] = of
    pool.put(key(MODEL_REWRITE, "older"), obj)


def accepted(pool: PooledCluster, status: str) -> None:
    condition = {"type": "Accepted", "status": status, "reason": "Pending"}
    pool.change(key(MODEL_REWRITE, "model"), status={"conditions": [condition]})


IN_FORCE: dict[str, tuple[Any, str]] = {
    "default status": (lambda pool: accepted(pool, "Unknown"), ""),
    "not accepted": (lambda pool: accepted(pool, "False"), "is not Accepted: Pending"),
    "default group": (lambda pool: pool.operate(poolRef={"name": "pool"}), "is of the pool None/pool, not of infer"),
    "older": (older, "InferenceModelRewrite older matches model too"),
    "newer": (lambda pool: older(pool, "2026-03-02T00:00:00Z"), ""),
    "of another pool": (lambda pool: older(pool, of="other"), ""),
}


@pytest.mark.parametrize("case", IN_FORCE)
def test_what_the_picker_does_not_draw_by_is_unsettled(pool: PooledCluster, case: str) -> None:
    spoil, words = IN_FORCE[case]
    pool.port().apply(split(5, epoch=1))
    spoil(pool)
    read = pool.port().read()
    assert isinstance(read, Unsettled) and words in read.reason if words else isinstance(read, Split)
    pool.port().apply(split(0, epoch=2))
    assert pool.shares() == (100, 0), "whatever it is, a rollback is asked for"


@pytest.mark.slow
@pytest.mark.shared
def test_the_component_stands_in_place_of_the_slots(tmp_path: Path, shared_data: Path) -> None:
    folder = Path(shutil.copytree(MANIFESTS, tmp_path / "manifests")) / "overlays" / "eks-spot-h200"
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("# - ../../components/pool ", "- ../../components/pool ", 1))
    objects = objects_of(folder)
    assert [found for obj in objects if (found := OWN.problems(obj) if OWN.known(obj) else problems(obj))] == []
    picker = Pods(SERVING, "the chart's", {"llm-d-router-gateway": "pool-epp"}, {})
    assert misnamed(objects) + dangling(objects) + idle_selectors(objects, [*from_outside(), picker]) == []
    assert not [each for each in lint_objects(objects) if "pool" in each.where]
    assert {right for right in rights(objects, RUNS, "launcher") if right[0] == SERVING} == {
        *((SERVING, "llm-d.ai", "inferencemodelrewrites", verb) for verb in ("get", "patch", "list")),
        *((SERVING, "", "configmaps", verb) for verb in ("get", "patch")),
        (SERVING, "discovery.k8s.io", "endpointslices", "list"),
    }
    assert not [obj for obj in objects if obj["metadata"]["name"].startswith("slot-")]
    (server,) = named(objects, "Deployment", "pool")["spec"]["template"]["spec"]["containers"]
    assert {"--enable-lora", f"--dtype={served_dtype(on_gpu=True)}"} <= set(server["args"])
    assert ADAPTERS in [mount["mountPath"] for mount in server["volumeMounts"]]
    for base, modules in ((CANARY, ""), (BASE, f" --lora-modules {NOTED['LORA_MODULES']}")):
        command = ["/bin/sh", "-c", server["args"][0].replace("/opt/vllm/bin/python", "echo"), "vllm", "--a"]
        printed = subprocess.check_output(command, env={**NOTED, "SERVED_MODEL_NAME": base}, text=True)
        assert printed == f"-m vllm.entrypoints.openai.api_server --a{modules}\n", "adapters over its base alone"
