"""`python -m pipeline.training.nemo.scorer PLAN STATISTICS reward|accuracy`, in this project's Python: a line with JSON
of completions in, a line with JSON of their rewards out, by the reward function that TRL calls.

NeMo RL knows no completion without a reward: one that abstained is given the mean of those that it is compared with,
which leaves their mean as it is and its own advantage 0."""

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline.core.conversation import to_prompt
from pipeline.core.locations import Document
from pipeline.core.processes import die_with_parent
from pipeline.core.storage import write_atomically
from pipeline.rewards.custom import custom_scorer
from pipeline.rewards.verifiers import Grader, VerifierTask
from pipeline.training.plan import TrainingPlan
from pipeline.training.reward_function import RewardFunction
from pipeline.training.schedule import metadata_by_prompt

Rows = Sequence[dict[str, Any]]


def rewarded(reward: RewardFunction, statistics: Path, rows: Rows) -> list[float]:
    """Rewards of a batch, compared within the completions of a prompt; its statistics replace those before them."""
    metrics: dict[str, float] = {}
    values = reward(
        prompts=[row["prompt"] for row in rows],
        completions=[[{"role": "assistant", "content": row["completion"]}] for row in rows],
        completion_ids=[[]] * len(rows),  # each has a reference, and counts whether it ended or not
        reference=[row["reference"] for row in rows],
        verifier=[row["verifier"] for row in rows],
        log_metric=metrics.__setitem__,
    )
    prompts = [to_prompt(row["prompt"]) for row in rows]
    alike: defaultdict[str, set[float | None]] = defaultdict(set)
    for prompt, value in zip(prompts, values, strict=True):
        alike[prompt].add(value)
    metrics["frac_reward_zero_std"] = fmean(len(group - {None}) < 2 for group in alike.values())
    write_atomically(statistics, json.dumps(metrics))
    return without_abstentions(values, prompts)


def right(check: Grader, rows: Rows) -> list[float]:
    """The verifier's word on each, compared over the batch."""
    grades = check([VerifierTask(row["completion"], row["reference"], row["verifier"]) for row in rows])
    return without_abstentions([grade.outcome.score for grade in grades], [""] * len(rows))


def without_abstentions(values: Sequence[float | None], groups: Sequence[Hashable]) -> list[float]:
    """Each None replaced by the mean of its group, 0 in a group that has nothing else."""
    scores_by_group: defaultdict[Hashable, list[float]] = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        if value is not None:
            scores_by_group[group].append(value)
    means = {group: fmean(scores_by_group[group]) if scores_by_group[group] else 0.0 for group in set(groups)}
    return [means[group] if value is None else value for value, group in zip(values, groups, strict=True)]


def scorer_of(plan: TrainingPlan, statistics: Path, what: str, stack: ExitStack) -> Callable[[Rows], list[float]]:
    check = stack.enter_context(closing(Grader(plan.rewards.verifier)))
    if what == "accuracy":
        return partial(right, check)
    custom = custom_scorer("verified", plan.rewards)
    if custom is not None:
        stack.callback(custom.close)
    reward = RewardFunction(plan.rewards, check, custom, metadata=metadata_by_prompt(plan.data))
    return partial(rewarded, reward, statistics)


def main(plan_path: Path, statistics: Path, what: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever is printed is no answer
    plan = TrainingPlan.model_validate_json(plan_path.read_bytes(), context=Document(plan_path))
    with ExitStack() as stack:
        score = scorer_of(plan, statistics, what, stack)
        for line in sys.stdin:
            print(json.dumps(score(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
