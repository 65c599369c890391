"""Iterations that were labelled, for who counts, reviews or shows labels."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core.estimate import UNKNOWN
from pipeline.core.iteration import Iteration
from pipeline.core.layout import GOVERNED, LATEST
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.rewards.records import LABELS, RewardLabels
from pipeline.traces.records import GovernedTraces


def label(
    store: Store,
    id: str,
    rewards: Mapping[str, float | None],
    without_consent: tuple[str, ...] = (),
    scores: Mapping[str, Any] = MappingProxyType({}),
    champion: str = "m",
) -> Iteration:
    """The newest iteration, with these labels by trace. `scores`: `feedback` and `judge` of each of them."""
    rows = len(rewards)
    nowhere = DatasetRef(uri="d", rows=rows, digest="d")
    iteration = Iteration(
        id=id, number=0, model_name="m", champion=ModelRef(uri="m", digest=champion), dataset=nowhere, recipe_digest="r"
    )
    folder = store.path(iteration.path("reward_labels"))
    folder.mkdir(parents=True, exist_ok=True)
    table = [
        {"trace_id": trace, "observation_id": "o", "prompt": "[]", "completion": f"{at}", "final_reward": reward,
         "missing": "{}", "user_id": f"u{at}", "day": "2026-01-05", "consent": trace not in without_consent,
         "judge_id": "j", **scores}
        for at, (trace, reward) in enumerate(rewards.items())
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(table, schema=LABELS), folder / "part.parquet")
    record = RewardLabels(
        iteration=id, dataset=DatasetRef(uri=str(folder), rows=rows, digest="d"), labelled=rows, coverage=1.0,
        unlabelled={}, outcomes={}, mean_reward=0.5, histogram=(0,) * 20, components={},
        human_noise=UNKNOWN,
        checked=0, remembered=0, tokens=0, usd=0.0,
    )  # fmt: skip
    store.write(iteration.path("reward_labels.json"), record)
    governed = GovernedTraces(iteration=iteration, source="s", days=())
    store.write(iteration.path(GOVERNED), governed)
    store.write(LATEST, iteration)
    return iteration
