"""Reviews at a terminal and by the clock: `pt reviews write | status`.

`write` draws this week's sample of the newest iteration's labels and says where its sheet is; `status` says how many
rows are scored and how well the labels agree with them. Exit codes: 0 done, 1 something in the sheets needs a hand (it
says what), 2 it could not be done (it says why).
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.records import LABELS
from assets.resources import Deployment, deployment
from jobs.preference_tuning import executor
from pipeline.recipe.rewards import DEFAULT_RUBRIC
from pipeline.rewards import reviews, summary
from pipeline.rewards.records import RewardLabels
from pipeline.traces.erased import shared_lock


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        return asked.run(deployment(), asked)
    except (ValueError, OSError) as error:
        print(f"{asked.command}: {error}", file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt reviews", description=__doc__)
    commands = options.add_subparsers(dest="command", required=True)
    commands.add_parser("write", help="draw this week's sheet").set_defaults(run=_write)
    status = commands.add_parser("status", help="how many rows are scored, and how well the labels agree with them")
    status.add_argument("--json", action="store_true", help="the same as one JSON object")
    status.set_defaults(run=_status)
    return options


def write_sample(settings: Deployment, now: datetime) -> str:
    """Publish the week's sheet, unless there is one; says where it is. Nobody is forgotten meanwhile."""
    recipe, store, week = settings.recipe_of(settings.latest()), settings.store(), reviews.week_of(now)
    with shared_lock(store):
        labels = _labels(settings)
        sheet = reviews.write(
            store,
            labels,
            week,
            recipe.rewards.review_rows,
            recipe.rewards.judge.rubric if recipe.rewards.judge else DEFAULT_RUBRIC,
        )
    if sheet is None:
        return f"Iteration {labels.iteration} has no labels to review."
    return f"The sheet of {week} is {sheet}. How to fill it in: {sheet.with_name(reviews.RUBRIC)}"


@dg.op
def draw_a_sample(context: dg.OpExecutionContext, deployment: Deployment) -> None:
    """A sheet of labels for people to score."""
    context.log.info(write_sample(deployment, datetime.now(UTC)))


@dg.job(executor_def=executor)
def review_sample():
    """Draws this week's review sample from the newest iteration's labels."""
    draw_a_sample()


def report_lines(fields: dict[str, Any], floor: float) -> Iterator[str]:
    """The state of the reviews for a person."""
    for week, each in fields["weeks"].items():
        yield f"{week}: {each['scored']} of {each['rows']} rows scored"
    if (agreement := fields.get("agreement")) is None:
        yield "No sample has been drawn. Draw one: pt reviews write"
        return
    yield f"Labels of iteration {fields['iteration']} against {agreement.reviews} reviews:"
    yield f"  Spearman's rho {agreement.rank_correlation}; its lower bound has to reach {floor:.2f}"
    yield f"  on the other side of 0.5 {agreement.noise}"


def _write(settings: Deployment, asked: argparse.Namespace) -> int:
    print(write_sample(settings, datetime.now(UTC)))
    return 0


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    """An interval or a share is its value with its bounds."""
    survey = reviews.survey(settings.store())
    scored = Counter(review.week for review in survey.reviewed)
    weeks = {week: {"rows": rows, "scored": scored[week]} for week, rows in sorted(survey.asked.items())}
    fields: dict[str, Any] = {"weeks": weeks, "problems": list(survey.problems)}
    if survey.asked:
        labels = _labels(settings)
        table = reviews.labels_of(labels.dataset, survey.reviewed)
        fields |= {"iteration": labels.iteration, "agreement": summary.human_agreement(table, survey.reviewed)}
    if asked.json:
        print(json.dumps(fields, indent=2, ensure_ascii=False, default=lambda record: record.model_dump(mode="json")))
    else:
        lines = report_lines(fields, settings.recipe().rewards.min_rank_correlation)
        print("\n".join([*lines, *survey.problems]))
    return 1 if survey.problems else 0


def _labels(settings: Deployment) -> RewardLabels:
    return LABELS.read(settings.store(), settings.latest().id)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
