"""What is overridden in TRL has mostly no public name: a release that changes it fails here, not in a training."""

import ast
import inspect
import textwrap
from typing import Any

import pytest
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.sft_trainer import SFTTrainer

from pipeline.training.methods.trl_trainers import GroupTrainer, PairTrainer, ThumbTrainer, TokenisedRows

pytestmark = pytest.mark.slow  # its imports take seconds

PARAMETERS = {
    "_generate_single_turn": ["self", "prompt_ids", "images", "multimodal_fields", "num_generations"],
    "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    "_get_per_token_logps_and_entropies": ["self", "model", "input_ids", "attention_mask", "logits_to_keep"],
    "_generate_and_score_completions": ["self", "inputs"],
}
"""As TRL 1.16 has them; parameters that follow have defaults."""


def body(name: str) -> ast.FunctionDef:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(getattr(GRPOTrainer, name)))).body
    assert isinstance(function, ast.FunctionDef)
    return function


@pytest.mark.parametrize("name", PARAMETERS)
def test_trl_has_the_method_that_is_overridden(name: str) -> None:
    parameters = list(inspect.signature(getattr(GRPOTrainer, name)).parameters.values())
    wanted = PARAMETERS[name]
    assert [each.name for each in parameters[: len(wanted)]] == wanted
    assert all(each.default is not inspect.Parameter.empty for each in parameters[len(wanted) :])


def test_nothing_else_private_of_trl_is_overridden() -> None:
    overridden = {name for name in vars(GroupTrainer) if hasattr(GRPOTrainer, name) and not name.startswith("__")}
    assert overridden == set(PARAMETERS)


def test_trl_returns_and_logs_what_is_read() -> None:
    keys = {node.value for node in ast.walk(body("_generate_and_score_completions")) if isinstance(node, ast.Constant)}
    used: list[Any] = ["prompt_mask", "completion_mask", "old_per_token_logps", "ref_per_token_logps"]
    assert {*used, "sampling/sampling_logp_difference/mean"} <= keys


@pytest.mark.parametrize("name", ["_metrics", "_logs"])
def test_trl_has_the_attribute_that_is_read(name: str) -> None:
    assert f"self.{name}" in inspect.getsource(GRPOTrainer)


@pytest.mark.parametrize("trainer", [DPOTrainer, KTOTrainer])
def test_trl_prepares_rows_where_that_is_overridden(trainer: Any) -> None:
    assert list(inspect.signature(trainer._prepare_dataset).parameters) == [
        "self", "dataset", "processing_class", "args", "dataset_name",
    ]  # fmt: skip


def test_nothing_else_of_trl_is_overridden_for_rows() -> None:
    def overridden(ours: type, theirs: type) -> set[str]:
        return {name for name in vars(ours) if hasattr(theirs, name) and not name.startswith("__")}

    assert overridden(TokenisedRows, KTOTrainer) == {"_prepare_dataset"}
    assert overridden(ThumbTrainer, KTOTrainer) == {"log"}
    assert overridden(PairTrainer, DPOTrainer) == {"get_batch_samples", "compute_loss"}
    assert 'self._metrics[mode]["kl"].append' in inspect.getsource(KTOTrainer)


def test_trl_weighs_the_sft_term_in_each_micro_batch() -> None:
    source = inspect.getsource(DPOTrainer._compute_loss)
    assert "zip(self.loss_types, self.loss_weights, strict=True)" in source
    assert "chosen_per_token_logps[chosen_mask.bool()].mean()" in source


def test_trl_takes_rows_with_ids_and_labels_as_they_are() -> None:
    source = inspect.getsource(SFTTrainer._prepare_dataset)
    assert 'is_processed = "input_ids" in column_names' in source
    assert 'if "labels" not in column_names:' in source
