"""A training whose completions a judge scores: its pods learn where it listens, and no others do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k8s.gang import Gang, gang_of
from k8s.render.pod import container
from pipeline.recipe import Kubernetes, Rewards
from pipeline.recipe.custom import located
from pipeline.recipe.rewards import Weights
from tests.pipeline.rewards.functions import QUALITY, write_function
from tests.pipeline.training.plans import make_plan
from tests.pipeline.training.scored_plans import make_scored_plan, rubric

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
