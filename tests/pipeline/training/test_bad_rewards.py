"""A reward function that is broken: the training ends, with a word that says of what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.recipe.methods import GRPO
from tests.pipeline.training.plans import folder, make_plan

pytestmark = pytest.mark.slow

RUN = """
import json, math, sys
from pathlib import Path
from pipeline.core.locations import record_of_iteration
from pipeline.rewards.verifiers import grader_of
from pipeline.training.methods import trainer_of
from pipeline.training.plan import TrainingPlan
from pipeline.training.setup import PlanSetup
from pipeline.training.worker import run

def breaks(completions, **_):
    raise KeyError("no such column")

BAD = {
    "None for all": lambda completions, **_: [None] * len(completions),
    "NaN": lambda completions, **_: [math.nan] * len(completions),
    "infinite": lambda completions, **_: [math.inf if n % 2 else 0.0 for n in range(len(completions))],
    "wrong length": lambda completions, **_: [1.0] * (len(completions) - 1),
    "raises": breaks,
}
found = {}
for name, path in zip(BAD, sys.argv[1:], strict=True):
    path = Path(path)
    plan, folder = TrainingPlan.model_validate_json(path.read_bytes(), context=record_of_iteration(path)), path.parent
    BAD[name].__name__ = "bad"
    builder = trainer_of(PlanSetup(plan, folder, BAD[name]))
    try:
        result = run(builder, builder.arguments(), grader_of(plan.rewards.verifier))
        found[name] = [result.health.verdict, result.health.findings[0].step, result.health.findings[0].reason]
    except Exception as error:  # the boundary to the broken reward: what it raised is what is looked at
        found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.mark.variant
def test_a_broken_reward_stops_the_training_or_fails_it(tmp_path: Path) -> None:
    paths: list[str] = []
    for number in range(5):
        settings = GRPO(steps=6, prompts_per_step=2, num_generations=2, max_completion_tokens=8)
        store, plan = make_plan(tmp_path / str(number), "grpo", grpo=settings)
        paths.append(str(folder(store, plan) / "plan.json"))
    done = subprocess.run([sys.executable, "-c", RUN, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("None for all", "NaN"):
        assert found[name][:2] == ["STOP", 1], found[name]
        assert "reward" in found[name][2]
    assert found["infinite"][0] == "STOP" and found["infinite"][1] <= 2
    assert found["wrong length"][0] == "ValueError" and "3 rewards, but 4 were expected" in found["wrong length"][1]
    assert found["raises"] == ["KeyError", "'no such column'"]
