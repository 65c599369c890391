"""What NeMo RL cannot express is refused before anything is paid for, and again when the plan is made: no plan, no
nodes. A checkout of another release too."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import layout
from pipeline.recipe import Compute, Kubernetes, Lora, Selection, Training, Validation
from pipeline.training.launch import possible_methods, training_faults
from pipeline.training.nemo.limits import checkout_fault
from tests.contexts import recipe_of
from tests.pipeline.training.plans import GRPO_SETTINGS, make_plan

DRAWN = GRPO_SETTINGS.model_copy(update={"generation": "vllm_colocate"})
CLUSTER = Kubernetes(backend="rayjob", image="r.example/i@sha256:" + "0" * 64)
GRPO_ALONE = Selection(method="grpo")


@pytest.mark.parametrize(
    ("settings", "selection", "devices", "words"),
    [
        ({}, GRPO_ALONE, 1, []),
        ({}, Selection(), 1, ["DPO is not rendered", "SFT is not rendered", "KTO is not rendered"]),
        ({"lora": Lora(quantise="nf4")}, GRPO_ALONE, 1, ["training.lora.quantise 'nf4'"]),
        ({"lora": Lora(modules_to_save=("lm_head",), dora=True), "attention": "sdpa"}, GRPO_ALONE, 1,
         ["training.lora.modules_to_save", "training.lora.dora", "training.attention 'sdpa'"]),
        ({"grpo": DRAWN.model_copy(update={"trainer_args": {"grpo.seed": 3}})}, GRPO_ALONE, 1,
         ["training.grpo.trainer_args 'grpo.seed' is decided by the recipe"]),
        ({"grpo": DRAWN.model_copy(update={"trainer_args": {"grpo.async_grpo.enabled": True}})}, GRPO_ALONE, 1,
         ["scored one by one"]),
        ({}, GRPO_ALONE, 3, ["Set fsdp2", "do not split over 3 devices"]),
        ({"validation": Validation(every_steps=2, max_completion_tokens=9)}, GRPO_ALONE, 1, ["it validates as"]),
    ],
)  # fmt: skip
def test_the_recipe_alone_tells_what_it_cannot_train(
    settings: dict[str, Any], selection: Selection, devices: int, words: list[str]
) -> None:
    training = Training.model_validate({"engine": "nemo_rl", "grpo": DRAWN, **settings})
    recipe = recipe_of(training=training, selection=selection, compute=Compute(processes=devices, kubernetes=CLUSTER))
    faults = training_faults(recipe, possible_methods(recipe))
    assert len(faults) == len(words)
    assert all(word in fault for word, fault in zip(words, faults, strict=True))


def test_a_training_here_needs_a_checkout_of_a_known_release(tmp_path: Path) -> None:
    recipe = recipe_of(training=Training(engine="nemo_rl", grpo=DRAWN), selection=GRPO_ALONE)
    (fault,) = training_faults(recipe, possible_methods(recipe))
    assert "No NeMo RL in /opt/nemo-rl" in fault
    checkout = tmp_path / "nemo-rl"
    shutil.copytree(Path(__file__).parent / "checkout", checkout)
    (checkout / "examples" / "configs").mkdir()
    (checkout / "examples" / "configs" / "grpo_math_1B.yaml").touch()
    assert checkout_fault(checkout) is None
    (checkout / "nemo_rl" / "package_info.py").write_text('MAJOR = 0\nMINOR = 4\nPATCH = 0\nPRE_RELEASE = ""\n')
    assert checkout_fault(checkout) == f"The NeMo RL in {checkout} is release 0.4.0. Check out 0.6.0 or 0.7.0."


def test_no_plan_is_made_of_what_it_cannot_train(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"training\.lora\.quantise"):
        make_plan(tmp_path, engine="nemo_rl", grpo=DRAWN, lora={"quantise": "nf4"})
    assert not list(tmp_path.rglob(layout.PLAN)), "and none is left behind"


def test_own_rewards_and_system_prompts_are_taken(tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path, engine="nemo_rl", grpo=DRAWN, system="Be brief.")
    assert plan.rewards.verified.format > 0 and plan.data is not None
