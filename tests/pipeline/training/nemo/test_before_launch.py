"""What NeMo RL cannot express or carry is refused when the plan is made: no plan, no nodes."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.core import layout
from pipeline.recipe import Rewards
from pipeline.recipe.rewards import Weights
from tests.pipeline.training.plans import GRPO_SETTINGS, make_plan

CORRECT = Rewards(min_coverage=0, verified=Weights(correct=1.0))
DRAWN = GRPO_SETTINGS.model_copy(update={"generation": "vllm_colocate"})


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"rewards": Rewards(min_coverage=0)}, "rewards.verified pays format, length"),
        ({"rewards": CORRECT, "system": "Be brief."}, "24 of 24 prompts are not one message of the user"),
        ({"rewards": CORRECT, "lora": {"quantise": "nf4"}}, "training.lora.quantise"),
    ],
)
def test_no_plan_is_made_of_what_it_cannot_train(settings: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=word):
        make_plan(tmp_path, engine="nemo_rl", grpo=DRAWN, **settings)
    assert not list(tmp_path.rglob(layout.PLAN)), "and none is left behind"
