"""Trainings of the embedded model that go wrong on purpose, and clean ones, by stock TRL with the embedded recipe's
settings: histories for the sentinel to judge. `train` yields one row for each optimizer step."""

import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from datasets import Dataset, disable_progress_bars
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from transformers.utils import logging
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer

from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.recipe import Validation
from pipeline.rewards.composite import Reward
from pipeline.rewards.records import COMPONENTS, DOES_NOT_APPLY, Finding
from pipeline.rewards.verifiers import Grade, Outcome, VerifierTask, final_answer
from pipeline.training.reward_function import reward_statistics
from pipeline.training.texts import completion_statistics
from pipeline.training.validation import HeldOut, Validator

Row = dict[str, float]
EVERY, PROMPTS, MAX_TOKENS = 5, 32, 32
TEMPLATE = "77+77=77. 77+77=777."


class Plant(NamedTuple):
    """A training: what is wrong with it, and how it departs from the embedded recipe."""

    name: str
    what: str
    weights: dict[str, float]
    """Of the reward, by measure in `MEASURES`."""
    steps: int = 100
    """Of the whole run, which the learning rate decays over."""
    learning_rate: float = 1.2e-3
    temperature: float = 1.0
    prompts_per_step: int = 8
    lost_from: int | None = None
    """Step from which no completion has a reward."""
    dpo_beta: float | None = None
    """Given: DPO instead of GRPO."""
    sft: bool = True


def _right(text: str, reference: str) -> float:
    return float(final_answer(text) == reference)


def _like_the_template(text: str, reference: str) -> float:
    return sum(a == b for a, b in zip(text, TEMPLATE, strict=False)) / len(TEMPLATE)


MEASURES: dict[str, tuple[str, Callable[[str, str], float]]] = {
    "correct": ("correct", _right),
    "format": ("format", lambda text, _: float(final_answer(text) is not None)),
    "length": ("length", lambda text, _: float(8 <= len(text.strip()) <= 120)),
    "longer": ("length", lambda text, _: min(1.0, len(text) / 120)),
    "template": ("format", _like_the_template),
    "unanswered": ("judge", lambda text, _: float(final_answer(text) is None)),
    "marked": ("judge", lambda text, _: float(any(map(str.islower, text)))),
    "nines": ("judge", lambda text, _: text.count("9") / max(1, len(text))),
}
"""Component of the composite that a measure stands for, and its value for (completion, reference)."""

HONEST = {"correct": 1.0, "format": 0.1, "length": 0.05}
"""Clean runs take fewer prompts a step than the recipe's sixteen: cheaper, and noisier, so harder to leave alone."""
CLEAN = (
    Plant("GRPO, 32 steps", "the embedded recipe, a quarter of its prompts a step", HONEST, 32, prompts_per_step=4),
    Plant("GRPO, 100 steps", "longer, half of its prompts a step", HONEST, 100),
    Plant("DPO, 60 steps", "the embedded recipe", HONEST, 60, 3e-4, dpo_beta=0.3),
)
PLANTS = (
    Plant("collapse", "ten times the learning rate, at temperature 1.2", HONEST, 100, 1.2e-2, 1.2),
    Plant("NaN reward", "from step 4 on no completion can be scored", HONEST, lost_from=4),
    Plant("length paid", "a tenth for the right answer, the rest for characters",
          {"correct": 0.1, "longer": 0.9}, 100, 3e-3, 1.6),
    Plant("template", "the reward is the share of characters that equal those of one fixed text", {"template": 1.0},
          100, 3e-3, 1.6),
    Plant("format only", "any answer in its place is worth everything", {"format": 1.0}),
    Plant("refuse all", "a completion without a final answer is worth everything",
          {"correct": 0.1, "unanswered": 0.9}, 100, 3e-3, 1.6),
    Plant("KL explosion", "the share of nines is worth everything, at three times the rate", {"nines": 1.0},
          100, 4e-3, 1.2),
    Plant("judge injection", "a judge worth 0.8 is fooled by any word among the sums", {"correct": 0.2, "marked": 0.8},
          100, 3e-3, 1.6),
    Plant("DPO collapse", "ten times the learning rate, beta 0.1, no sft term", HONEST,
          60, 3e-3, dpo_beta=0.1, sft=False),
)  # fmt: skip


def train(plant: Plant, seed: int, stop: Callable[[Sequence[Row]], bool] = lambda rows: False) -> list[Row]:
    """Train until `stop` says so of the rows so far, or to the end; returns the rows."""
    warnings.filterwarnings("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR, padding_side="left")
    watcher = Watcher(stop)
    with tempfile.TemporaryDirectory() as folder:
        make = _grpo if plant.dpo_beta is None else _dpo
        trainer = make(plant, seed, folder, model, tokenizer, watcher)
        trainer.remove_callback(PrinterCallback)
        watcher.trainer = trainer
        trainer.train()
    return watcher.rows


class Watcher(TrainerCallback):
    """Collects the rows, validates as the trainer does, the base model first, and stops the run."""

    def __init__(self, stop: Callable[[Sequence[Row]], bool]) -> None:
        self.rows: list[Row] = []
        self.trainer: Any = None
        self._stop, self._measured = stop, Row()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        held_out = [HeldOut([_turn("user", p.prompt)], p.answer, "exact") for p in problems(11, "heldout", PROMPTS)]
        settings = Validation(every_steps=EVERY, prompts=PROMPTS, samples=2, max_completion_tokens=MAX_TOKENS)
        tokenizer = self.trainer.processing_class
        self._validate = Validator(held_out, grade_here, settings, tokenizer, [tokenizer.eos_token_id])
        self._measured = self._validate(self.trainer)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % EVERY == 0:
            self._measured = self._validate(self.trainer)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs is None or "loss" not in logs:
            return
        row = {name: math.nan if value is None else float(value) for name, value in logs.items()}
        self.rows.append({"step": float(state.global_step), **row, **self._measured})
        self._measured = {}
        control.should_training_stop |= self._stop(self.rows)


def grade_here(checks: Sequence[VerifierTask]) -> list[Grade]:
    """Exact answers, without the workers that other kinds of checks need."""
    return [Grade(Outcome.correct if _right(c.completion, c.reference) else Outcome.wrong, "") for c in checks]


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def reward_of(plant: Plant) -> Callable[..., list[float | None]]:
    """The plant's composite as TRL calls it, with the metrics that the trainer logs beside it."""

    def reward(
        prompts: list[Any], completions: list[Any], reference: list[str], trainer_state: Any,
        log_metric: Callable[[str, float], None], **_: Any,
    ) -> list[float | None]:  # fmt: skip
        texts = [messages[-1]["content"] for messages in completions]
        lost = plant.lost_from is not None and trainer_state.global_step + 1 >= plant.lost_from
        rewards = [_score(plant, *each, lost) for each in zip(texts, reference, strict=True)]
        for name, value in {
            **reward_statistics(rewards),
            **completion_statistics(texts, list(map(str, prompts))),
        }.items():
            log_metric(name, value)
        return [each.final_reward for each in rewards]

    return reward


def _score(plant: Plant, text: str, reference: str, lost: bool) -> Reward:
    findings, weights, total = dict.fromkeys(COMPONENTS, DOES_NOT_APPLY), dict[str, float](), 0.0
    findings["correct"] = Finding(_right(text, reference))
    for measure, weight in plant.weights.items():
        component, function = MEASURES[measure]
        value = function(text, reference)
        findings[component], weights[component] = Finding(value), weight / sum(plant.weights.values())
        total += weights[component] * value
    return Reward(None if lost else total, "error" if lost else "", "verified", weights, findings)


def _common(plant: Plant, seed: int, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": plant.steps, "lr_scheduler_type": "linear", "save_strategy": "no",
        "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "seed": seed, "bf16": False, "use_cpu": True,
        "gradient_checkpointing": False, "dataloader_pin_memory": False, "learning_rate": plant.learning_rate,
    }  # fmt: skip


def _lora() -> LoraConfig:
    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def _grpo(plant: Plant, seed: int, folder: str, model: Any, tokenizer: Any, watcher: Watcher) -> Any:
    drawn = problems(seed, "train", plant.steps * plant.prompts_per_step)
    rows = [{"prompt": [_turn("user", p.prompt)], "reference": p.answer} for p in drawn]
    config = GRPOConfig(
        **_common(plant, seed, folder), num_generations=8, max_completion_length=MAX_TOKENS, beta=0.0,
        temperature=plant.temperature, per_device_train_batch_size=plant.prompts_per_step * 8, shuffle_dataset=False,
    )  # fmt: skip
    return GRPOTrainer(
        model=model, reward_funcs=reward_of(plant), args=config, train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer, peft_config=_lora(), callbacks=[watcher],
    )  # fmt: skip


def _dpo(plant: Plant, seed: int, folder: str, model: Any, tokenizer: Any, watcher: Watcher) -> Any:
    rows = [
        {
            "prompt": [_turn("user", p.prompt)],
            "chosen": [_turn("assistant", p.solution)],
            "rejected": [_turn("assistant", mistaken_solution(p))],
        }
        for p in problems(seed, "train", 600)
    ]
    config = DPOConfig(
        **_common(plant, seed, folder), per_device_train_batch_size=32, beta=plant.dpo_beta,
        loss_type=["sigmoid", "sft"] if plant.sft else ["sigmoid"], loss_weights=[1.0, 0.3] if plant.sft else [1.0],
    )  # fmt: skip
    return DPOTrainer(
        model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer,
        peft_config=_lora(), callbacks=[watcher],
    )  # fmt: skip
