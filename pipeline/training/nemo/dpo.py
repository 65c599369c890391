"""What NeMo RL needs to hear of a plan that trains by DPO.

Departure of what is rendered, by NeMo RL's own definition: the sft term is averaged within each completion first. Rows
go into PreferenceDataset's `context` and ranked `completions`, which hold any conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.recipe.methods import DPO
from pipeline.training.nemo.rendering import Rendering, Row, TokenCount, Tree, distinct
from pipeline.training.plan import TrainingPlan


class DPORendering(Rendering):
    example = "dpo.yaml"
    script = "run_dpo.py"
    dataset = "PreferenceDataset"

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

    def data_default(self) -> Row:
        return {}

    def data_source(self) -> Row:
        return {}

    def refuse(self, rows: Sequence[Row]) -> None:
        """Any conversation has its place."""

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
