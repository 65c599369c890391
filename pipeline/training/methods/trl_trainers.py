"""TRL's DPOTrainer and KTOTrainer over tokenised rows, and its GRPOTrainer with the split of a step's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.kto_trainer import KTOTrainer

from pipeline.training.rates import Tokens

if TYPE_CHECKING:
    from pipeline.training.methods.builder import MethodTrainer


class GroupTrainer(GRPOTrainer):
    """Overrides four methods that TRL keeps to itself; tests/pipeline/training/methods/test_trl.py holds signatures."""

    def __init__(self, *args: Any, builder: MethodTrainer, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._minibatches, self._clock = builder.method.num_minibatches, builder.clock
        self._counted = {"generated": 0.0, "scored": 0.0}
        self._batch_tokens = self._batch_length = 0.0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.span("generate"):
            output = super()._generate_single_turn(*args, **kwargs)
        self._counted["generated"] += sum(map(len, output[0]))
        return output

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        with self._clock.span("reward"):
            return super()._calculate_rewards(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():  # the update's own forward pass
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)
        with self._clock.span("logprobs"):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._batch_tokens = float(output["prompt_mask"].sum() + output["completion_mask"].sum())
        self._batch_length = self._batch_tokens / len(output["prompt_mask"])
        passes = sum(name in output for name in ("old_per_token_logps", "ref_per_token_logps"))
        self._counted["scored"] += passes * self._batch_tokens
        return output

    def take_counted(self) -> Tokens:
        """Tokens since the last call: this rank's times the ranks, which do the same number of completions each."""
        counted, self._counted = self._counted, {"generated": 0.0, "scored": 0.0}
        ranks: int = self.accelerator.num_processes
        trained = ranks * self._batch_tokens / self._minibatches
        return Tokens(ranks * counted["generated"], trained, ranks * counted["scored"], self._batch_length)


class TokenisedRows:
    """Overrides one method that TRL keeps to itself: rows have the ids that TRL's collator takes."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset


class PairTrainer(TokenisedRows, DPOTrainer):
    """TRL takes the mean of the `sft` term over the tokens of a micro-batch: here it is over those of the whole step,
    on all devices, as SFT's is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weights, self._mean_tokens = tuple(self.loss_weights), 1.0

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        gathered: Any = self.accelerator.gather(torch.tensor([_chosen_tokens(each) for each in batches], device=device))
        self._mean_tokens = float(gathered.float().mean())
        return batches, items

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        share = _chosen_tokens(inputs) / self._mean_tokens
        weighed = zip(self.loss_types, self._weights, strict=True)
        self.loss_weights = [weight * share if kind == "sft" else weight for kind, weight in weighed]
        return super().compute_loss(model, inputs, *args, **kwargs)


def _chosen_tokens(batch: Any) -> int:
    """Of the chosen answers, which are the first half of a batch of pairs."""
    mask = batch["completion_mask"]
    return int(mask[: len(mask) // 2].sum())


class ThumbTrainer(TokenisedRows, KTOTrainer):
    """TRL logs KTO's reference point z0, in nats an answer, as `kl`, which other trainers log in nats a token: here it
    is `reference_point`."""

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for metrics in self._metrics.values():
            if "kl" in metrics:
                metrics["reference_point"] = metrics.pop("kl")
        super().log(logs, start_time)
