"""The user's own function over the rows of a table: its findings are in the journal as soon as they are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing

from pipeline.core.storage import Store
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.custom import AGAIN, CustomScore, CustomScorer, CustomTask, custom_key, wants_custom
from pipeline.rewards.findings import FindingLine, journal
from pipeline.rewards.samples import RewardSample


def custom_keys(held: Mapping[int, RewardSample], id: str, settings: Rewards) -> dict[int, str]:
    """The key of the function's finding on each row whose reward it has a say in. `id`: of the function."""
    return {
        at: custom_key(id, sample.trace_id, sample.observation_id, _task(sample))
        for at, sample in held.items()
        if wants_custom(sample.profile, settings) and not sample.unscored
    }


def score_rest(
    store: Store,
    day: str,
    iteration: str,
    settings: Rewards,
    wanted: Mapping[str, RewardSample],
    lines: dict[str, FindingLine],
) -> int:
    """Score what has no finding that stands, add it to `lines` and to the journal; how many rows that were.

    Raises ValueError when the function can't be imported, or not be called.
    """
    keys = [key for key in wanted if key not in lines or lines[key].again]
    if not keys or settings.custom is None:
        return 0
    of_task: defaultdict[CustomTask, list[str]] = defaultdict(list)
    for key in keys:
        of_task[_task(wanted[key])].append(key)
    writer = journal(store, day)

    def note(task: CustomTask, score: CustomScore) -> None:
        value, reason = score.finding
        for key in of_task[task]:
            lines[key] = FindingLine(
                key=key,
                source="custom",
                account=iteration,
                trace_id=wanted[key].trace_id,
                owner=wanted[key].user_id,
                values={} if value is None else {"custom": value},
                missing={"custom": reason} if value is None else {},
                answer=score.detail,
                again=reason in AGAIN,
            )
            writer.add(lines[key])

    with closing(CustomScorer(settings.custom)) as scorer:
        scorer(list(of_task), note)
    return len(keys)


def _task(sample: RewardSample) -> CustomTask:
    return CustomTask(sample.prompt, sample.completion, sample.reference, sample.metadata)
