"""Each rule finds the mistake that it was made for, and says nothing where there is none."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.gang import Gang
from k8s.lint import GANG_RULES, RULES, Violation, lint_gang, lint_objects
from k8s.lint.manifests import Manifests
from k8s.lint.outcomes import CRASHED, EVICTED, NOTICED, REFUSED, PodExit, jobset_action, volcano_action
from k8s.lint.tree import quantity
from k8s.render import render
from tests.k8s.lint.cases import STATIC, find, gang, good, put
from tests.k8s.lint.edits import Mistake
from tests.k8s.lint.mistakes import MISTAKES

BACKENDS = ("jobset", "volcano", "rayjob")


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
    errors = [f for f in lint_gang(ours, render(ours)) if f.severity == "error"]
    assert errors == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.rule}: {m.what}")
def test_a_mistake_is_found(mistake: Mistake) -> None:
    objects = good(mistake.backend)
    before = rules(lint_objects(objects))
    mistake.edit(objects)
    after = lint_objects(objects)
    assert mistake.rule not in before
    assert mistake.rule in rules(after)
    for finding in after:
        assert finding.reason.endswith(".")
        assert finding.fix.endswith((".", ")"))
        assert finding.problem
        assert "\n" not in finding.where


def test_every_rule_has_a_mistake() -> None:
    assert RULES.keys() - {m.rule for m in MISTAKES} == set()
    assert {m.rule for m in MISTAKES} - RULES.keys() == set()
    assert GANG_RULES.keys() == {rule for rule, _ in RECIPES}


RECIPES: list[tuple[str, Gang]] = [
    ("gpus-over-instance", gang(instance_type="g6e.12xlarge")),
    ("gpus-idle", gang(processes=4)),
    ("data-root-outside-mount", gang(data_root="/data/tuning")),
    ("data-root-outside-mount", gang(data_root="/checkpoints-old/tuning")),
    ("grace-of-recipe", gang(grace_s=5)),
    ("grace-of-recipe", gang(grace_s=300)),
    ("grace-of-recipe", gang(grace_s=100, instance_type="a4-highgpu-8g")),
    ("save-over-grace", gang(grace_s=15, instance_type="a4-highgpu-8g")),
    ("engine-backend", gang("rayjob").model_copy(update={"engine": "trl"})),
    ("engine-backend", gang().model_copy(update={"engine": "nemo_rl"})),
    ("reserved-env", gang(env={"NODE_RANK": "0"})),
    ("gang-size", gang()),
    ("deadline-under-timeout", gang()),
    ("gang-labels", gang()),
    ("pipes-out-of-reach", gang()),
]
STALE: dict[str, dict[str, Any]] = {
    "gang-size": {"nodes": 4},
    "deadline-under-timeout": {"timeout_s": 90_000},
    "gang-labels": {"attempt": 2},
    "pipes-out-of-reach": {"pipes": {"DAGSTER_PIPES_CONTEXT": "eJyrVkpMT1WyUqgFABNHAzs="}},
}
"""Rendered from a gang, but not from this one any more."""


@pytest.mark.parametrize(("rule", "ours"), RECIPES, ids=[rule for rule, _ in RECIPES])
def test_a_recipe_that_cannot_work_is_found(rule: str, ours: Gang) -> None:
    assert rule in rules(lint_gang(ours.model_copy(update=STALE.get(rule, {})), render(ours)))


def test_a_recipe_of_8_gpus_on_nodes_of_4_says_so() -> None:
    ours = gang(instance_type="g6e.12xlarge")
    (result,) = [f for f in lint_gang(ours, []) if f.rule == "gpus-over-instance"]
    assert result.problem == "3 nodes of 8 GPUs, but g6e.12xlarge has 4"


def test_on_gke_a_short_grace_is_the_nodes_own_limit() -> None:
    ours = gang(grace_s=15, instance_type="a4-highgpu-8g")
    by_name = {f.rule: f.severity for f in lint_gang(ours, render(ours))}
    assert "grace-of-recipe" not in by_name
    assert by_name["save-over-grace"] == "warning"


def test_lint_passes_over_an_unreadable_runtime_environment() -> None:
    for content in ("a: [1", "- 1", "!!timestamp x", "2024-99-99", "[" * 700, "env_vars: 5", ""):
        objects = good("rayjob")
        objects[0]["spec"]["runtimeEnvYAML"] = content
        assert lint_objects(objects) == []


def test_pools_of_others_are_no_refusal() -> None:
    """Without a pool for trainings the nodes come from elsewhere."""
    objects = good()
    put(find(objects, "NodePool"), 'spec.template.metadata.labels."preference-tuning/pool"', "serving")
    put(find(objects, "NodePool"), "spec.template.spec.requirements.1.values", ["g6e.4xlarge"])
    assert not rules(lint_objects(objects)) & {"no-pool", "flavour-without-pool"}


def test_either_of_two_pools_will_do() -> None:
    objects = good()
    other = deepcopy(find(objects, "NodePool"))
    put(other, "metadata.name", "others")
    put(other, "spec.template.spec.requirements.1.values", ["p5.48xlarge"])
    assert "no-pool" not in rules(lint_objects([*objects, other]))
    assert "no-pool" in rules(lint_objects([o for o in objects if o["kind"] != "NodePool"] + [other]))


def test_pipes_files_outside_the_volume_are_found() -> None:
    from dagster_pipes import encode_param

    def problems(path: str) -> list[str]:
        ours = gang(pipes={"DAGSTER_PIPES_MESSAGES": encode_param({"path": path})})
        return [f.problem for f in lint_gang(ours, render(ours)) if f.rule == "pipes-out-of-reach"]

    assert problems("/tmp/messages") == ["/tmp/messages, the volume is at /checkpoints"]
    assert problems("/checkpoints/tuning/messages") == []


@pytest.mark.parametrize(
    ("end", "action"),
    [
        (EVICTED, "RestartJobSetAndIgnoreMaxRestarts"),
        (NOTICED, "RestartJobSetAndIgnoreMaxRestarts"),
        (PodExit(137, evicted=True), "RestartJobSetAndIgnoreMaxRestarts"),
        *((end, "FailJobSet") for end in REFUSED),
        (CRASHED, "RestartJobSet"),
        (PodExit(137), "RestartJobSet"),
    ],
)
def test_how_our_jobset_ends(end: PodExit, action: str) -> None:
    (workload,) = Manifests(render(gang())).gangs
    assert jobset_action(workload.object, workload.jobs[0], end) == action


@pytest.mark.parametrize(
    ("end", "action"),
    [
        *((end, "RestartJob") for end in (EVICTED, NOTICED, CRASHED)),
        *((end, "AbortJob") for end in REFUSED),
    ],
)
def test_how_our_volcano_job_ends(end: PodExit, action: str) -> None:
    (job,) = render(gang("volcano"))
    assert volcano_action(job, job["spec"]["tasks"][0], end) == action


def test_a_secret_is_not_repeated_in_the_report() -> None:
    objects = good()
    put(
        find(objects, "Deployment"),
        "spec.template.spec.containers.0.env.0",
        {"name": "API_KEY", "value": "hunter2hunter2"},
    )
    matches = [f for f in lint_objects(objects) if f.rule == "secret-in-manifest"]
    assert matches
    assert not any("hunter2" in f.model_dump_json() for f in matches)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1600Gi", 1600 * 2**30), ("500G", 5e11), ("191450m", 191.45), (8, 8.0), ("1e3", 1e3), ("1.5Ti", 1.5 * 2**40),
     ("", 0.0), (None, 0.0), (True, 0.0), ("many", 0.0), ("5Xi", 0.0), ({}, 0.0)],
)  # fmt: skip
def test_quantities(text: object, value: float) -> None:
    assert quantity(text) == pytest.approx(value)


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
@settings(max_examples=50)
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
    for finding in lint_objects(objects):
        assert finding.rule in RULES
