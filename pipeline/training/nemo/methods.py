"""What differs between methods in NeMo RL: configuration, data and limits."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from pipeline.recipe.methods import DPO, GRPO
from pipeline.training.plan import TrainingPlan

Tree = dict[str, Any]
Row = dict[str, Any]
TokenCount = Callable[[Sequence[Row], bool], int]
"""Tokens of messages; True: with the words that open an answer."""
LOSSES = {"dapo": True, "grpo": False}
"""Our `loss_type` to NeMo RL's `token_level_loss`."""


class GRPORendering:
    """What NeMo RL is told of a plan. Departures: dynamic sampling ends the training when groups are still missing
    after the last round; leave-one-out scales by the deviation of the other rewards too; KL and advantages are clamped
    as the example says."""

    example = "grpo_math_1B.yaml"
    """The file in NeMo RL's `examples/configs` whose keys are inherited."""
    script = "run_grpo.py"
    """The file in `examples` that trains."""
    dataset = "ResponseDataset"
    """NeMo RL's class for the rows: `input` and `output` are one message of the user and the reference."""
    data_default: ClassVar[Row] = {
        "input_key": "input",
        "output_key": "output",
        "processor": "math_hf_data_processor",
        "env_name": "math",
    }
    """Keys in `data.default`."""
    data_source: ClassVar[Row] = {"split_validation_size": 0}
    """Keys in `data.train` and `data.validation`."""

    def __init__(self, plan: TrainingPlan, grpo: GRPO) -> None:
        self.plan, self.grpo = plan, grpo

    def limits(self) -> Iterator[str]:
        """Each setting that NeMo RL cannot express, and what to change."""
        grpo = self.grpo
        if grpo.num_iterations != 1:
            yield f"training.grpo.num_iterations {grpo.num_iterations}: each batch is used once. Set 1."
        if grpo.loss_type not in LOSSES:
            yield f"training.grpo.loss_type {grpo.loss_type!r}: set one of {', '.join(LOSSES)}."
        if grpo.scale_rewards == "batch":
            yield "training.grpo.scale_rewards 'batch': set group or none."
        if grpo.generation == "transformers":
            yield "training.grpo.generation 'transformers': it draws completions with vLLM. Set vllm_colocate."
        resources = [f"policy.generation.colocated.resources.{name}" for name in ("gpus_per_node", "num_nodes")]
        if grpo.generation == "vllm_server" and not any(key in grpo.trainer_args for key in resources):
            yield f"training.grpo.generation 'vllm_server': give it devices, in trainer_args {' or '.join(resources)}."
        completions = grpo.examples_per_update
        if completions % self.plan.world_size:
            yield (
                f"training.grpo: {completions} completions an update do not split over {self.plan.world_size} devices."
            )
        yield from self._rewards()
        yield from self._validated()

    def _rewards(self) -> Iterator[str]:
        """Its math environment pays 1 for a right answer and 0 for any other."""
        rewards = self.plan.rewards
        paid = {name: weight for name, weight in rewards.verified.model_dump().items() if weight}
        if set(paid) != {"correct"}:
            others = ", ".join(sorted(set(paid) - {"correct"})) or "nothing"
            yield (
                f"rewards.verified pays {others}: its environment knows right and wrong. Keep correct alone above 0."
            )
        if rewards.verifier.kind != "math":
            yield f"rewards.verifier.kind {rewards.verifier.kind!r}: it checks with math-verify. Set math."

    def _validated(self) -> Iterator[str]:
        grpo, training = self.grpo, self.plan.training
        if self.plan.held_out is None:
            return
        if training.validation.max_completion_tokens != grpo.max_completion_tokens:
            yield (
                f"training.validation.max_completion_tokens {training.validation.max_completion_tokens}: it validates "
                f"as it trains. Set {grpo.max_completion_tokens} as in training.grpo."
            )
        if grpo.temperature != 1.0:
            yield f"training.grpo.temperature {grpo.temperature}: held-out answers would be drawn at it too. Set 1.0."
        save = grpo.batches_in(training.checkpoints.every_steps)
        look = grpo.batches_in(training.validation.every_steps)
        if save % look:
            yield (
                f"training.checkpoints.every_steps: a checkpoint every {save} batches of generation is not one in "
                f"every {look}, when held-out prompts are asked, and would have no accuracy. Set a multiple."
            )

    def sections(self) -> Tree:
        """The sections of the configuration that are the method's own."""
        grpo, plan = self.grpo, self.plan
        rounds = grpo.dynamic_sampling
        looks = plan.held_out is not None
        settings: Tree = {
            "num_prompts_per_step": grpo.prompts_per_step,
            "num_generations_per_prompt": grpo.num_generations,
            "max_num_steps": grpo.batches,
            "max_num_epochs": rounds or 1,  # the rows are in the order of the steps; more rounds want more of them
            "normalize_rewards": grpo.scale_rewards == "group",
            "use_leave_one_out_baseline": grpo.baseline == "leave_one_out",
            "use_dynamic_sampling": rounds is not None,
            "val_period": grpo.batches_in(plan.training.validation.every_steps) if looks else 0,
            "val_at_start": looks,  # what the base model can do
            "val_at_end": looks,
            "seed": plan.training.seed,
        }
        if rounds is not None:
            settings["dynamic_sampling_max_gen_batches"] = rounds
        if plan.held_out is not None:
            # NeMo RL asks max_val_samples // val_batch_size batches: with a larger batch it asks none and reports 0.
            asked = plan.held_out.rows * plan.training.validation.samples
            settings |= {"max_val_samples": asked, "val_batch_size": asked}
        loss = {
            "reference_policy_kl_penalty": grpo.beta,
            "reference_policy_kl_type": "k3",
            "ratio_clip_min": grpo.epsilon,
            "ratio_clip_max": grpo.epsilon,
            "token_level_loss": LOSSES[grpo.loss_type],
        }
        math = {"math_verify_impl": "hf_math_verify", "num_workers": plan.rewards.verifier.workers}
        return {"grpo": settings, "loss_fn": loss, "env": {"math": math}}

    def policy(self) -> Tree:
        """Its keys in the section `policy`."""
        return {
            "generation": {
                "backend": "vllm",
                "max_new_tokens": self.grpo.max_completion_tokens,
                "temperature": self.grpo.temperature,
                "colocated": {"enabled": self.grpo.generation == "vllm_colocate"},
            }
        }

    def refuse(self, rows: Sequence[Row]) -> None:
        """Raise ValueError for rows that the dataset's class cannot hold."""
        shapes = Counter("+".join(message["role"] for message in row["prompt"]) for row in rows)
        if others := {shape: n for shape, n in shapes.items() if shape != "user"}:
            raise ValueError(
                f"{sum(others.values())} of {len(rows)} prompts are not one message of the user ({dict(others)}), and "
                "NeMo RL's ResponseDataset carries nothing else. Set training.engine trl."
            )
        kinds = Counter(row["verifier"] for row in rows if row["verifier"] not in (None, "math"))
        if kinds:
            raise ValueError(
                f"{kinds.total()} of {len(rows)} references are not checked as math ({dict(kinds)}), and NeMo RL's "
                "math environment checks nothing else. Set training.engine trl."
            )

    def line(self, row: Row) -> Row:
        """A row of the plan, or of its held-out prompts, as a line of the file."""
        return {"input": row["prompt"][0]["content"], "output": row["reference"]}

    def longest(self, rows: Sequence[Row], tokens: TokenCount) -> int:
        """Tokens of the longest sequence, prompt and completion."""
        prompts: list[Any] = distinct(row["prompt"] for row in rows)
        return max(tokens(prompt, True) for prompt in prompts) + self.grpo.max_completion_tokens


class DPORendering:
    """The same for DPO. Departure: the sft term is averaged within each completion first."""

    example = "dpo.yaml"
    script = "run_dpo.py"
    dataset = "PreferenceDataset"
    data_default: ClassVar[Row] = {}
    data_source: ClassVar[Row] = {}

    def __init__(self, plan: TrainingPlan, dpo: DPO) -> None:
        self.plan, self.dpo = plan, dpo

    def limits(self) -> Iterator[str]:
        dpo = self.dpo
        if unknown := set(dpo.loss_type) - {"sigmoid", "sft"}:
            yield f"training.dpo.loss_type {', '.join(sorted(unknown))}: set sigmoid, with or without sft."
        elif "sigmoid" not in dpo.loss_type:
            yield "training.dpo.loss_type without sigmoid: that is supervised fine-tuning. Add sigmoid."
        if self.plan.held_out is not None:
            yield (
                "training.validation.every_steps: it judges DPO by the loss on held-out pairs, and the plan holds "
                "prompts to answer. Set 0."
            )
        if dpo.batch_size % self.plan.world_size:
            yield (
                f"training.dpo.batch_size {dpo.batch_size} does not split over {self.plan.world_size} devices: use a "
                "multiple."
            )

    def sections(self) -> Tree:
        weights = dict(zip(self.dpo.loss_type, self.dpo.loss_weights, strict=True))
        return {
            "dpo": {
                "max_num_steps": self.dpo.steps,
                "max_num_epochs": 1,
                "val_period": 0,
                "val_at_start": False,
                "val_at_end": False,
                "seed": self.plan.training.seed,
                "reference_policy_kl_penalty": self.dpo.beta,
                "preference_average_log_probs": False,
                "sft_average_log_probs": True,  # summed, a long completion would drown the preference
                "preference_loss_weight": weights["sigmoid"],
                "sft_loss_weight": weights.get("sft", 0.0),
            }
        }

    def policy(self) -> Tree:
        return {}

    def refuse(self, rows: Sequence[Row]) -> None:
        """Its class holds every pair."""

    def line(self, row: Row) -> Row:
        ranked = [{"rank": rank, "completion": row[side]} for rank, side in enumerate(("chosen", "rejected"))]
        return {"context": row["prompt"], "completions": ranked}

    def longest(self, rows: Sequence[Row], tokens: TokenCount) -> int:
        sides = distinct(row["prompt"] + row[side] for row in rows for side in ("chosen", "rejected"))
        longest = max(tokens(side, False) for side in sides)
        if self.dpo.max_tokens is not None and longest > self.dpo.max_tokens:
            raise ValueError(
                f"A pair has {longest} tokens, more than training.dpo.max_tokens {self.dpo.max_tokens}: NeMo RL would "
                "leave it out instead of cutting it. Raise max_tokens, or set training.engine trl."
            )
        return longest


Rendering = GRPORendering | DPORendering


def rendering(plan: TrainingPlan) -> Rendering:
    """Of the plan's method. Raises ValueError for a method that is not rendered for NeMo RL."""
    method = plan.trained_by()
    if isinstance(method, GRPO):
        return GRPORendering(plan, method)
    if isinstance(method, DPO):
        return DPORendering(plan, method)
    raise ValueError(f"training.engine nemo_rl: {method.title} is not rendered for NeMo RL. Set training.engine trl.")


def distinct(values: Iterable[Any]) -> list[Any]:
    return [json.loads(text) for text in dict.fromkeys(map(json.dumps, values))]
