"""TRL's KTOTrainer over tokenised rows. TRL logs KTO's reference point z0, in nats an answer, as `kl`, which other
trainers log in nats a token: here it is `reference_point`."""

from typing import Any

from trl.trainer.kto_trainer import KTOTrainer

REFERENCE_POINT = "reference_point"


class ThumbTrainer(KTOTrainer):
    """Overrides one method that TRL keeps to itself; tests/pipeline/training/methods/test_trl.py has its signature."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        return dataset

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for metrics in self._metrics.values():
            if "kl" in metrics:
                metrics[REFERENCE_POINT] = metrics.pop("kl")
        super().log(logs, start_time)
