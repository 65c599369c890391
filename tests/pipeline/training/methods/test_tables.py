"""Methods of tables: balance of the two kinds of thumbs, what is refused, what a step takes."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from pipeline.core.storage import model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Training
from pipeline.recipe.methods import DPO, GRPO, KTO, SFT, Method
from pipeline.training.methods import TokenisedAnswers, trainer_of
from pipeline.training.methods.builder import MethodTrainer
from tests.pipeline.training.plans import make_plan

pytestmark = pytest.mark.slow  # its imports take seconds


def arguments(method: Method, monkeypatch: pytest.MonkeyPatch) -> Any:
    plan: Any = SimpleNamespace(
        trained_by=lambda: method,
        data=SimpleNamespace(rows=4),
        world_size=1,
        training=Training(),
        base=model_ref(MODEL_DIR),
    )
    labels: Any = {"label": [True, True, True, False]}
    monkeypatch.setattr(MethodTrainer, "rows", lambda self, columns: labels)
    return trainer_of(plan, Path("run"), reward=None).arguments()  # type: ignore[arg-type]


@pytest.mark.parametrize(("up", "down"), [(50, 50), (90, 10), (10, 90), (150, 750)])
def test_both_kinds_weigh_the_same_in_all(up: int, down: int) -> None:
    liked, disliked = KTO().class_weights([True] * up + [False] * down)
    assert liked * up == pytest.approx(disliked * down)
    assert liked * up + disliked * down == pytest.approx(up + down), "a row weighs 1 on average"


def test_the_weight_of_the_rarer_kind_is_bounded() -> None:
    for labels in ([True] * 299 + [False], [False] * 299 + [True]):
        rarer = labels[-1]
        liked, disliked = KTO().class_weights(labels)
        assert (liked / disliked if rarer else disliked / liked) == pytest.approx(10.0)


@pytest.mark.parametrize("labels", [[True] * 5, [False] * 5, []])
def test_one_kind_of_thumbs_is_refused(labels: list[bool]) -> None:
    with pytest.raises(ValueError, match=r"thumbs of both kinds, and these are \d up and \d down: collect"):
        KTO().usable([{"label": label} for label in labels])


def test_a_device_with_one_row_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="batch_size"):
        KTO(batch_size=1)
    with pytest.raises(ValueError, match="two rows and more at once on a device"):
        arguments(KTO(trainer_args={"per_device_train_batch_size": 1}), monkeypatch)


def test_arguments_are_those_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    found = arguments(KTO(beta=0.3, max_tokens=5000, trainer_args={"loss_type": "apo_zero_unpaired"}), monkeypatch)
    assert (found.beta, found.loss_type, found.max_length) == (0.3, "apo_zero_unpaired", 1024), (
        "no more than the context"
    )
    assert (found.desirable_weight * 3, found.train_sampling_strategy) == (found.undesirable_weight, "sequential")
    other = arguments(SFT(trainer_args={"loss_type": "dft"}), monkeypatch)
    assert (other.loss_type, other.max_length, other.train_sampling_strategy) == ("dft", None, "sequential")


@pytest.mark.parametrize(
    ("method", "name", "words"),
    [
        (KTO, "beta", "would override"),
        (KTO, "sync_ref_model", "would override"),
        (SFT, "packing", "would override"),
        (SFT, "seed", "would override"),
        (GRPO, "chat_template_kwargs", "would override"),
        (DPO, "model_init_kwargs", "would override"),
    ],
)
def test_what_is_decided_elsewhere_is_refused(method: type[Method], name: str, words: str) -> None:
    with pytest.raises(ValidationError, match=f"trainer_args: {name} {words}"):
        method.model_validate({"trainer_args": {name: 1}})


def test_each_row_has_the_answer_of_its_neighbour_on_the_device() -> None:
    answers = TokenisedAnswers([[0]] * 5, [[n] for n in range(1, 6)])
    rows = answers.swapped([True] * 5, at_once=2)
    assert rows["KL_completion_ids"][:] == [[2], [1], [4], [3], [5]]


def test_work_counts_passes_without_a_gradient() -> None:
    assert KTO().flops(10, 20) == 12 * 100 * 32 * 30
    assert SFT().flops(10, 20) == 6 * 100 * 16 * 30


def test_a_balanced_router_can_still_generate(tmp_path: Path, family: Callable[[str], Path]) -> None:
    """SFT of a mixture of experts: TRL asks for the router's logits."""
    _, plan = make_plan(tmp_path, "sft", base=family("qwen3moe"))
    builder = trainer_of(plan, tmp_path, reward=None)  # type: ignore[arg-type]
    trainer: Any = builder.trainer(builder.arguments(), [])
    assert trainer.aux_loss_enabled
    asked = {"input_ids": torch.tensor([[0, 5, 6], [5, 6, 7]]), "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
    assert trainer.model.generate(**asked, min_new_tokens=2, max_new_tokens=2).shape == (2, 5)
