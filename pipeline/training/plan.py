"""The trainer's contract: the plan that goes in and the result that comes out.

Owns what is trained, on what, from which base and with which settings. A plan names content by digest, so the same
plan is the same training wherever it runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.iteration import Iteration
from pipeline.recipe import DPO, GRPO, Algorithm, Lora, Rewards, Selection, Training
from pipeline.selection.choose import Decision, choose
from pipeline.selection.cost import Expected
from pipeline.selection.preferences import PAIRS, PROMPTS, PreferenceDataset
from pipeline.storage import CheckpointRef, DatasetRef, ModelRef, Record, Store, digest_file, digest_json
from pipeline.traces.erased import publishing


class TrainingPlan(Record):
    """Everything that the trainer knows. `algorithm` and `data` are None when the decision is not to train."""

    iteration: str
    decision: Decision
    algorithm: Algorithm | None
    base: ModelRef
    data: DatasetRef | None
    without_consent: int
    """Rows of the dataset that were left out because consent was withdrawn since it was built."""
    lora: Lora
    rewards: Rewards
    seed: int
    checkpoint_every_steps: int
    threads: int

    def digest(self) -> str:
        """Identity of the training: content and settings, not where they lie. Checkpoints of another plan don't fit."""
        assert self.algorithm is not None and self.data is not None, "a plan without training has no digest"
        return digest_json(
            {
                "algorithm": self.algorithm.model_dump(mode="json"),
                "base": self.base.digest,
                "data": self.data.digest,
                "lora": self.lora.model_dump(mode="json"),
                "rewards": self.rewards.model_dump(mode="json"),
                "seed": self.seed,
                # a different interval saves elsewhere but computes the same; it is not part of the identity
            }
        )


class TrainingResult(Record):
    """What one training left. `metrics` holds a row per logged step; `seconds` is compute time over all attempts."""

    iteration: str
    plan_digest: str
    checkpoint: CheckpointRef
    metrics: tuple[dict[str, float], ...]
    seconds: float
    attempts: int
    resumed_from: tuple[int, ...]
    """Steps that an attempt resumed at, in order; empty for an undisturbed run."""


def plan_training(
    store: Store, iteration: Iteration, dataset: PreferenceDataset, selection: Selection, training: Training,
    rewards: Rewards, expected: Mapping[str, Expected], governed: Callable[[], Collection[tuple[str, str]]],
) -> TrainingPlan:  # fmt: skip
    """Decide the method and publish the plan with exactly the rows that the training will consume, in their order.

    `expected`: by method, what it would cost; for the record, not for the decision. `governed`: (trace_id,
    observation_id) of the rows that may be trained on now: the plan may be made long after the dataset. Raises
    ValueError when nobody behind the dataset agrees any more.
    """

    def make() -> TrainingPlan:
        decision = choose(dataset.evidence, selection, rewards.min_coverage, expected)
        algorithm = {"grpo": training.grpo, "dpo": training.dpo, "none": None}[decision.method]
        data, dropped = None, 0
        if algorithm is not None:
            agreed = frozenset(trace for trace, _ in governed())
            data, dropped = _schedule(store, iteration, dataset, algorithm, training.seed, agreed)
        return TrainingPlan(
            iteration=iteration.id,
            decision=decision,
            algorithm=algorithm,
            base=iteration.champion,
            data=data,
            without_consent=dropped,
            lora=training.lora,
            rewards=rewards,
            seed=training.seed,
            checkpoint_every_steps=training.checkpoint_every_steps,
            threads=training.threads,
        )

    with publishing(store):
        return store.once(iteration.path("training", "plan.json"), TrainingPlan, make)


def _schedule(
    store: Store,
    iteration: Iteration,
    dataset: PreferenceDataset,
    algorithm: GRPO | DPO,
    seed: int,
    agreed: Collection[str],
) -> tuple[DatasetRef, int]:
    """Write the rows of every step in order: one epoch without shuffling resumes exactly, whatever the sampler keeps.

    Prompts come with the most instructive first: GRPO takes as many of these as its steps ask for.
    """
    grpo = isinstance(algorithm, GRPO)
    source, schema = (dataset.prompts, PROMPTS) if grpo else (dataset.pairs, PAIRS)
    wanted = algorithm.steps * (algorithm.prompts_per_step if isinstance(algorithm, GRPO) else algorithm.batch_size)
    built: list[dict[str, Any]] = pq.read_table(source.uri).to_pylist()
    assert built, "choose() never picks a method without material"
    rows = [row for row in built if _may_be_used(row, agreed)]
    if not rows:
        raise ValueError(
            f"Consent to all {len(built)} rows was withdrawn since they were selected. Remove the iteration's "
            "preference_dataset.json and launch from there: dagster job launch -j preference_tuning "
            "-o 'preference_dataset*'"
        )
    dropped = len(built) - len(rows)
    dice = random.Random(seed)
    rows = rows[:wanted] if grpo else rows
    dice.shuffle(rows)
    order: list[dict[str, Any]] = []
    while len(order) < wanted:
        order += dice.sample(rows, len(rows))
    name = iteration.path("training", "data.parquet")
    path = store.path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_suffix(".staged")
    pq.write_table(pa.Table.from_pylist(order[:wanted], schema=schema), staged)
    staged.replace(path)
    return DatasetRef(uri=str(path), rows=wanted, digest=digest_file(path)), dropped


def _may_be_used(row: Mapping[str, Any], agreed: Collection[str]) -> bool:
    """A prompt while anybody who asked it agrees, a pair while both of its sides do."""
    if "trace_ids" in row:
        return any(trace in agreed for trace in row["trace_ids"])
    return row["chosen_trace"] in agreed and row["rejected_trace"] in agreed
