"""Gangs: names and labels from anything, what a node has, what a judged trainer's pod is told."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from k8s.gang import LABEL, Gang, evaluation_gang, gang_of, label_value, object_name
from k8s.launch import machine
from k8s.pod import container
from k8s.render import render
from pipeline.recipe import Compute, Kubernetes, Rewards
from pipeline.recipe.compute import EvaluationPod
from pipeline.recipe.custom import located
from pipeline.recipe.rewards import Weights
from tests.pipeline.rewards.functions import QUALITY, write_function
from tests.pipeline.training.plans import make_plan
from tests.pipeline.training.scored_plans import make_scored_plan, rubric

DNS_LABEL = r"[a-z](?:[-a-z0-9]*[a-z0-9])?"
VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
NASTY = ["x" * 300, "a\nb", "a\n---\nkind: Secret", "日本語", "-", "9", "A.B_C", " ", "a-", "ß", "\0", "${X}", "1" * 63]
texts = st.text(max_size=300) | st.sampled_from(NASTY)


@given(st.lists(texts, min_size=1, max_size=4), st.integers(12, LABEL))
def test_object_name_is_a_dns_label_within_its_limit(parts, limit):
    assume("-".join(parts).strip("-"))
    name = object_name(*parts, limit=limit)
    assert re.fullmatch(DNS_LABEL, name)
    assert len(name) <= limit
    assert name == object_name(*parts, limit=limit)


@given(texts, texts)
def test_different_texts_have_different_names(one, other):
    assume(one != other and one.strip("-") and other.strip("-"))
    assert object_name("train", one) != object_name("train", other)


@given(texts)
def test_label_value_is_legal(text):
    value = label_value(text)
    assert re.fullmatch(VALUE, value)
    assert len(value) <= LABEL
    if re.fullmatch(VALUE, text) and len(text) <= LABEL:
        assert value == text


URL = {"JUDGE_URL": "http://judge/v1"}


def settings(**changes: Any) -> Kubernetes:
    image = f"registry/trainer@sha256:{'0' * 64}"
    return Kubernetes.model_validate({"image": image, "instance_type": "cpu", "secret": "endpoints", **changes})


def variables(gang: Gang) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container(gang)["env"]}


def test_the_judge_is_named_to_the_pods_that_ask_it(tmp_path: Path) -> None:
    function = located(write_function(tmp_path / "f", QUALITY, "quality"), tmp_path)
    rewards = Rewards(min_coverage=0, judge=rubric(), custom=function, fresh=Weights(judge=1.0, custom=1.0))
    _, plan = make_scored_plan(tmp_path / "scored", rewards)
    env = variables(gang_of(plan, tmp_path / "plan.json", settings(), addresses=URL))
    assert env["JUDGE_URL"] == URL["JUDGE_URL"]
    assert env["JUDGE_API_KEY"] == {"secretKeyRef": {"name": "endpoints", "key": "JUDGE_API_KEY", "optional": True}}
    here = settings(env={"JUDGE_URL": "http://here/v1"})
    assert variables(gang_of(plan, tmp_path / "plan.json", here, addresses=URL))["JUDGE_URL"] == "http://here/v1"


def test_other_trainings_hear_of_no_judge(tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path)
    env = variables(gang_of(plan, tmp_path / "plan.json", settings(), addresses=URL))
    assert not {"JUDGE_URL", "JUDGE_API_KEY"} & env.keys()


IMAGE = "trainer@sha256:" + "0" * 64


def test_a_rayjobs_image_is_no_evaluations() -> None:
    settings = Kubernetes(image=IMAGE, backend="rayjob")
    with pytest.raises(ValueError, match=r"set compute\.evaluation\.image"):
        Compute(kubernetes=settings, evaluation=EvaluationPod())
    own = Compute(kubernetes=settings, evaluation=EvaluationPod(image=IMAGE))
    assert render(evaluation_gang("i", "0" * 64, Path("/checkpoints/p"), own))[0]["kind"] == "JobSet"


def test_the_memory_is_that_of_the_nodes_gpus() -> None:
    pod = EvaluationPod(instance_type="g6e.12xlarge", devices=4)
    assert machine(Compute(kubernetes=Kubernetes(image=IMAGE), evaluation=pod)).devices == (48 * 10**9,) * 4
