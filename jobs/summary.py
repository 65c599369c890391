"""What came out, for a person at a terminal: `pt summary` reads the newest iteration and prints it.

First how it ended and what to type next, then what its stages left. Reads records only: whatever an iteration does not
have yet is left out, not guessed. Exit codes: 0 done, 2 there is no iteration, or a record is damaged (it says which).
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from assets.environment import DATA_ROOT_TAG
from assets.naming import ROLLOUT
from assets.records import RECORDS, VERDICT
from assets.resources import ITERATION_TAG, Deployment, deployment
from jobs.ending import candidate, ending
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import ModelVersion

BARS = "▁▂▃▄▅▆▇█"


def main(arguments: Sequence[str] = ()) -> int:
    asked = parser().parse_args(arguments)
    settings = deployment()
    try:
        print(json.dumps(fields(settings), indent=2) if asked.json else "\n".join(lines(settings)))
    except ValueError as error:  # there is no iteration yet, or a record is damaged
        print(error, file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt summary", description=__doc__)
    options.add_argument(
        "--json", action="store_true", help="how it ended, and where its records lie, as one JSON object"
    )
    return options


def fields(settings: Deployment) -> dict[str, Any]:
    """The newest iteration for a machine: how it ended, what to type next, and the file of each record that it has."""
    iteration, store = settings.latest(), settings.store()
    ended, state = ending(settings, iteration), read_state(store, iteration.model_name)
    paths = {asset: store.path(iteration.path(left.name)) for asset, left in RECORDS.items()}
    verdict = VERDICT.find(store, iteration.id)
    return {
        "iteration": iteration.id,
        "number": iteration.number + 1,
        "ended": ended.text,
        "next": ended.next,
        "purpose": ended.purpose,
        "verdict": str(verdict.verdict) if verdict else None,
        "rollout": str(state.phase),
        "champion": state.past.champion.version if state.past.champion else None,
        "records": {asset: str(path) for asset, path in paths.items() if path.is_file()},
    }


def lines(settings: Deployment) -> Iterator[str]:
    """The summary of the newest iteration, line by line."""
    iteration = settings.latest()
    store = settings.store()
    ended = ending(settings, iteration)
    yield f"iteration {iteration.number + 1} ({iteration.id}) {ended.text}"
    yield f"next: {ended.next}"
    yield field("", ended.purpose)
    for asset, left in RECORDS.items():
        record = left.find(store, iteration.id)
        if record is not None and asset in TELLERS:
            yield from TELLERS[asset](record)
    yield from _rollout(settings, iteration)
    yield from _elapsed(settings, iteration)


def field(name: str, value: object) -> str:
    return f"  {name:<22}{value}"


def _traces(record: Any) -> Iterator[str]:
    days = [day.day for day in record.days]
    yield field("traces", f"{record.admitted:,} of {record.seen:,} rows admitted, {days[0]} to {days[-1]}")
    for reason, count in sorted(record.rejected.items(), key=lambda item: -item[1]):
        yield field("", f"{count:>6,}  rejected: {reason}")


def _labels(record: Any) -> Iterator[str]:
    yield field("labels", f"{record.labelled:,} of {record.dataset.rows:,} ({record.coverage:.1%} coverage)")
    yield field("mean reward", f"{record.mean_reward:.3f}")
    yield field("", f"{record.checked:,} checked now, {record.remembered:,} known before; {record.usd:.2f} USD")


def _reward_model(record: Any) -> Iterator[str]:
    if record.model is None:
        if record.counts.thumbs or record.counts.left_out:
            yield field("reward model", record.reason)
        return
    yield field("reward model", f"{'admitted' if record.admitted else 'not admitted'}, AUC {record.auc}")
    for reason in record.reasons:
        yield field("", reason)


def _samples(record: Any) -> Iterator[str]:
    if record.dataset is not None:
        yield field("samples", f"{record.labelled:,} fresh completions of {record.prompts:,} prompts are scored")
        yield field("  mean, best of k", f"{record.mean_reward:.3f}, {record.best_reward:.3f} (by the same scorers)")


def _plan(record: Any) -> Iterator[str]:
    decision = record.decision
    forced = " (forced by the recipe)" if decision.forced else ""
    yield field("method", f"{decision.method.upper()}{forced}")
    if decision.method != "none" or decision.forced:  # else what each method lacks is the reason
        for reason in decision.reasons:
            yield field("", f"because {reason}")
    for method, lacks in decision.lacks.items():
        yield field("", f"{method.upper()} lacks {'; '.join(lacks)}")
    if decision.method == "none":
        for number, change in enumerate(decision.would_change):
            yield field("" if number else "  would change it", change)


def _training(record: Any) -> Iterator[str]:
    goodput = record.goodput
    steps = f"{record.checkpoint.step} steps"
    if record.untrained_steps:
        steps = f"{record.checkpoint.step} of {record.checkpoint.step + record.untrained_steps} steps"
    times = f"{goodput.total_s:.0f} s, goodput {goodput.share:.0%}, {record.attempts} attempt(s)"
    yield field("training", f"{steps} in {times}")
    yield field("  health", record.health.verdict)
    for finding in record.health.findings:
        sign = "" if finding.verdict == "PASS" else f"{finding.verdict} "
        yield field("", f"{sign}at step {finding.step}: {finding.reason}")
    for key, name in (("accuracy", "accuracy"), ("rewards/accuracies", "pairs ranked right")):
        if values := [row[key] for row in record.metrics if key in row]:
            yield field(f"  {name}", f"{spark(values)}  {_ends(values)}")
    if held_out := [row["held_out/accuracy"] for row in record.metrics if "held_out/accuracy" in row]:
        yield field("  held-out prompts", f"{spark(held_out)}  {held_out[0]:.0%} -> {held_out[-1]:.0%}")


def _evaluation(record: Any) -> Iterator[str]:
    for problem in record.problems:
        yield field("evaluation", problem)
    for measured in record.measurements:
        compared = measured.comparison
        if compared is None:
            yield field(f"suite {measured.suite}", "; ".join(measured.problems))
            continue
        role = record.section.suite(measured.suite).role
        yield field(f"suite {measured.suite}", f"{compared.items:,} held-out items ({role})")
        for name, arm in (("before", compared.champion), ("after", compared.candidate)):
            yield field(f"  {name}", f"{arm.value:.1%}  (95% interval {arm.low:.1%} to {arm.high:.1%})")
        gain = compared.difference
        interval = f"95% interval {gain.low:+.1%} to {gain.high:+.1%}, paired by item"
        yield field("  difference", f"{gain.value:+.1%}  ({interval})")
    for measured in record.judged:
        rate = measured.win_rate
        if rate is None:
            yield field(f"suite {measured.suite}", "; ".join(measured.problems))
            continue
        yield field(f"suite {measured.suite}", f"{rate.pairs:,} pairs of answers, judged by {measured.judge}")
        for name, entry in (("preferred", rate.controlled), ("as judged", rate.raw)):
            share = f"{0.5 + entry.value:.1%}  (95% interval {0.5 + entry.low:.1%} to {0.5 + entry.high:.1%}"
            yield field(f"  {name}", f"{share}{', at equal lengths' if name == 'preferred' else ''})")


def _verdict(record: Any) -> Iterator[str]:
    yield field("verdict", str(record.verdict))
    for reason in record.reasons:
        yield field("", reason)


def _version(record: Any) -> Iterator[str]:
    yield field("registered", f"{record.name} version {record.version} (MLflow run {record.run_id})")


TELLERS: dict[str, Callable[[Any], Iterator[str]]] = {
    "traces": _traces,
    "reward_labels": _labels,
    "reward_model": _reward_model,
    "samples": _samples,
    "training_plan": _plan,
    "policy_checkpoint": _training,
    "eval_report": _evaluation,
    "gate_verdict": _verdict,
    "model_version": _version,
}


def _rollout(settings: Deployment, iteration: Iteration) -> Iterator[str]:
    state = read_state(settings.store(), iteration.model_name)
    version = settings.store().read(iteration.path(layout.MODEL_VERSION), ModelVersion)
    yield field("rollout", candidate(state, iteration, version))
    yield field("champion", f"version {state.past.champion.version}" if state.past.champion else "the base model")


def _elapsed(settings: Deployment, iteration: Iteration) -> Iterator[str]:
    """Seconds that each stage took in the runs of this iteration, and of the last look at a rollout."""
    prefix = settings.recipe().key_prefix
    with dg.DagsterInstance.from_config(str(Path.cwd())) as instance:  # the one that the commands typed here use
        runs = runs_of(instance, settings, iteration)
        stats = [step for run in runs for step in instance.get_run_step_stats(run.run_id)]
    timed = [
        (s.step_key.removeprefix(f"{prefix}__"), s.end_time - s.start_time)
        for s in stats
        if s.end_time and s.start_time
    ]
    if timed:
        yield field("seconds by stage", "  ".join(f"{name} {seconds:.0f}" for name, seconds in timed))


def runs_of(instance: dg.DagsterInstance, settings: Deployment, iteration: Iteration) -> list[dg.DagsterRun]:
    """Runs of the iteration, the oldest first, and the newest one of the rollout's job. Of this model under this data
    root: iterations over the same data with the same recipe have one id."""
    here = {DATA_ROOT_TAG: str(settings.store().root)}
    tagged = instance.get_runs(dg.RunsFilter(tags={**here, ITERATION_TAG: iteration.id}))
    looks = instance.get_runs(dg.RunsFilter(job_name=ROLLOUT, tags=here), limit=1)
    return [*reversed(tagged), *looks]


def spark(values: Sequence[float], width: int = 40) -> str:
    """A curve of values in [0, 1] as block characters, averaged down to `width` columns."""
    values = [value for value in values if math.isfinite(value)]
    size = max(1, -(-len(values) // width))
    means = [sum(part) / len(part) for part in (values[i : i + size] for i in range(0, len(values), size))]
    return "".join(BARS[min(len(BARS) - 1, int(mean * len(BARS)))] for mean in means)


def _ends(values: Sequence[float]) -> str:
    edge = max(1, len(values) // 10)
    return f"{sum(values[:edge]) / edge:.0%} -> {sum(values[-edge:]) / edge:.0%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
