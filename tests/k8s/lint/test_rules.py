"""Each rule finds the mistakes that it was made for, and says nothing where there is none."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.gang import Gang, evaluation_gang
from k8s.lint import GANG_RULES, RULES, Violation, lint_gang, lint_objects
from k8s.render import render
from pipeline.recipe import Compute, Kubernetes
from pipeline.recipe.compute import EvaluationPod
from tests.k8s.lint.cases import IMAGE, STATIC, gang, good
from tests.k8s.lint.mistakes import MISTAKES, Mistake

BACKENDS = ("jobset", "volcano", "rayjob")
WRONG = Path(__file__).parent / "wrong"


def rules(findings: list[Violation]) -> set[str]:
    return {finding.rule for finding in findings}


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_we_render_has_no_mistake(backend: str, nodes: int) -> None:
    ours = gang(backend, nodes=nodes)
    assert not lint_gang(ours, [*render(ours), *STATIC])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("instance", ["cpu", "p4d.24xlarge", "g6e.12xlarge", "a4-highgpu-8g"])
@pytest.mark.parametrize("capacity", ["spot", "spot_first", "on_demand"])
def test_nor_on_other_machines(backend: str, instance: str, capacity: str) -> None:
    processes = 4 if instance == "g6e.12xlarge" else 8
    grace_s = 15 if instance == "a4-highgpu-8g" and capacity != "on_demand" else 100
    ours = gang(backend, 2, processes, grace_s, instance_type=instance, capacity=capacity)
    assert lint_gang(ours, render(ours)) == []


@pytest.mark.parametrize(
    ("rule", "mistake"),
    [(rule, mistake) for rule, mistakes in MISTAKES.items() for mistake in mistakes],
    ids=lambda each: each if isinstance(each, str) else each.what,
)
def test_a_mistake_is_found(rule: str, mistake: Mistake) -> None:
    objects = good(mistake.backend)
    assert lint_objects(objects) == []
    mistake.edit(objects)
    findings = lint_objects(objects)
    assert rule in rules(findings)
    assert all(f.reason.endswith(".") and f.problem and "\n" not in f.where for f in findings)


def test_every_rule_has_a_mistake() -> None:
    assert {rule.id for rule in RULES} == MISTAKES.keys()
    assert {rule.id for rule in GANG_RULES} == {rule for rule, _ in RECIPES}


RECIPES: list[tuple[str, Gang]] = [
    ("gpus-over-instance", gang(instance_type="g6e.12xlarge")),
    ("data-root-outside-mount", gang(data_root="/data/tuning")),
    ("data-root-outside-mount", gang(data_root="/checkpoints-old/tuning")),
    ("grace-of-recipe", gang(grace_s=5)),
    ("grace-of-recipe", gang(grace_s=300)),
    ("grace-of-recipe", gang(grace_s=100, instance_type="a4-highgpu-8g")),
    ("engine-backend", gang("rayjob").model_copy(update={"engine": "trl"})),
    ("engine-backend", gang().model_copy(update={"engine": "nemo_rl"})),
    ("image-of-engine", gang(image=IMAGE.format("nemo-rl"))),
    ("image-of-engine", gang("rayjob", image=IMAGE.format("trainer"))),
    ("image-of-engine", gang("rayjob", image="nvcr.io/nvidia/nemo-rl:v0.4.0@sha256:" + "5" * 64)),
    ("image-not-built", gang(image="example.com/trainer@sha256:" + "0" * 64)),
    ("reserved-env", gang(env={"NODE_RANK": "0"})),
]


@pytest.mark.parametrize(("rule", "ours"), RECIPES, ids=[rule for rule, _ in RECIPES])
def test_a_recipe_that_cannot_work_is_found(rule: str, ours: Gang) -> None:
    assert rule in rules(lint_gang(ours, render(ours)))


def test_what_an_evaluation_asks_is_told_by_its_own_fields() -> None:
    """Of a pod that has fewer GPUs than it asks for, NeMo RL's image, and no more than GKE's notice to end in."""
    settings = Kubernetes(image=IMAGE.format("nemo-rl"), backend="rayjob", instance_type="a3-ultragpu-8g")
    pod = EvaluationPod(image=settings.image, devices=16)
    ours = evaluation_gang(
        "case", "5" * 64, Path("/checkpoints/plan.json"), Compute(kubernetes=settings, evaluation=pod)
    )
    found = {finding.rule: finding.where for finding in lint_gang(ours, [])}
    assert found == {
        "gpus-over-instance": "recipe compute.evaluation.devices", "image-of-engine": "recipe compute.evaluation.image"
    }  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_image_of_another_name_is_taken_as_it_is(backend: str) -> None:
    ours = gang(backend, image="registry.acme.example/ml/grpo:7@sha256:" + "5" * 64)
    assert lint_gang(ours, render(ours)) == []


SEEDS: dict[str, set[str]] = {
    "plain_job": {"job-completions", "eviction-replaces-one", "jobset-exit-64", "capacity-spelling", "efa-missing",
                  "no-shm", "several-zones", "drift-budget", "pool-limits"},
    "volcano": {"volcano-policies", "volcano-max-retry"},
    "raycluster": {"image-floating"},
    "seed 000": {"eviction-replaces-one", "exits-0-when-preempted", "image-floating"},
}  # fmt: skip


@pytest.mark.parametrize("name", ["plain_job", "volcano", "raycluster"])
def test_a_seed_s_mistakes_are_found(name: str) -> None:
    assert rules(lint_objects(list(yaml.safe_load_all((WRONG / f"{name}.yaml").read_text())))) == SEEDS[name]


@pytest.mark.shared
def test_the_workshop_s_own_text(shared_data: Path) -> None:
    """Seed 000 as it stands: the only one whose YAML has kept its indentation."""
    (text,) = [file.read_text() for file in (shared_data.parent / "seeds").glob("000_*.txt")]
    (block,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: Job" in block]
    assert rules(lint_objects(list(yaml.safe_load_all(block)))) == SEEDS["seed 000"]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=8)
    | st.sampled_from(["\n---\n", "9" * 5000, "1e999", "²", 10**400, float("inf"), float("nan")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.none() | st.integers(), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data(), backend=st.sampled_from(BACKENDS))
def test_no_manifest_brings_it_down(data: st.DataObject, backend: str) -> None:
    """Whatever stands in the place of any part of any object: findings, never an exception."""
    objects = good(backend)
    for _ in range(data.draw(st.integers(1, 4))):
        node: Any = data.draw(st.sampled_from(objects))
        while True:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or data.draw(st.integers(0, 3)) == 0:
                node[key] = data.draw(JUNK)
                break
            node = node[key]
    assert rules(lint_objects(objects)) <= {rule.id for rule in RULES}
