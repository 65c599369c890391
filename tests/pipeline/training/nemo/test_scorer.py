"""A batch of completions to rewards for an engine that knows no abstention, and what is said of the batch."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.processes import piped
from pipeline.recipe import Rewards
from pipeline.recipe.rewards import Weights
from pipeline.training.nemo.render import scorer
from pipeline.training.nemo.scorer import rewarded, without_abstentions
from tests.pipeline.rewards.functions import QUALITY, write_function
from tests.pipeline.rewards.test_custom import ANSWERS, GOLD

from .plans import make_plan


@pytest.mark.parametrize(
    ("values", "groups", "filled"),
    [
        ([1.0, None, 0.5, 0.0], "aaab", [1.0, 0.75, 0.5, 0.0]),
        ([None, None, 1.0], "aab", [0.0, 0.0, 1.0]),
        ([0.25, 0.5], "ab", [0.25, 0.5]),
        ([], "", []),
    ],
)
def test_an_abstention_gets_the_mean_of_its_group(values: list[float | None], groups: str, filled: list[float]) -> None:
    assert without_abstentions(values, groups) == filled


def test_a_batch_leaves_its_statistics(tmp_path: Path) -> None:
    def reward(prompts: list[Any], log_metric: Any, **columns: list[Any]) -> list[float | None]:
        assert columns["completions"][0] == [{"role": "assistant", "content": "7"}]
        log_metric("abstained", 0.25)
        return [1.0, None, 0.0, 0.0]

    rows = [{"prompt": [{"role": "user", "content": each}], "completion": "7", "reference": "7", "verifier": "math"}
            for each in ("one", "one", "two", "two")]  # fmt: skip
    statistics = tmp_path / "statistics.json"
    assert rewarded(reward, statistics, rows) == [1.0, 1.0, 0.0, 0.0]  # type: ignore[arg-type]
    assert json.loads(statistics.read_text()) == {"abstained": 0.25, "frac_reward_zero_std": 1.0}


@pytest.mark.slow
def test_the_process_pays_the_seeds_reward(tmp_path: Path) -> None:
    """What TRL's reward function makes of the same answers (tests/pipeline/training/test_custom_reward.py)."""
    custom = write_function(tmp_path, f"print('read me')\n{QUALITY}", "quality")
    plan = make_plan(tmp_path, rewards=Rewards(verified=Weights(custom=1.0), custom=custom))
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    rows = [{"prompt": prompt, "completion": text, "reference": GOLD, "verifier": "normalised"} for text in ANSWERS]
    with piped("The scorer", scorer(tmp_path, "reward")) as process:
        for _ in range(2):
            paid = json.loads(process.ask(json.dumps(rows)))
            assert paid == pytest.approx(list(ANSWERS.values()), abs=1e-12)
    statistics = json.loads((tmp_path / "statistics.json").read_text())
    assert statistics["component/custom"] == pytest.approx(1.0) and statistics["abstained"] == 0.0
