"""Reviews at a terminal and by the clock: `pt reviews write | status`.

`write` draws this week's sample of the newest iteration's labels and says where its sheet is; `status` says how many
rows are scored and how well the labels agree with them. Exit codes: 0 done, 1 something in the sheets needs a hand (it
says what), 2 it could not be done (it says why).
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

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
    text = "how many rows are scored, and how well the labels agree with them"
    commands.add_parser("status", help=text).set_defaults(run=_status)
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


def _write(settings: Deployment, asked: argparse.Namespace) -> int:
    print(write_sample(settings, datetime.now(UTC)))
    return 0


def _status(settings: Deployment, asked: argparse.Namespace) -> int:
    survey = reviews.survey(settings.store())
    for week, rows in sorted(survey.asked.items()):
        print(f"{week}: {sum(each.week == week for each in survey.reviewed)} of {rows} rows scored")
    if survey.asked:
        labels, floor = _labels(settings), settings.recipe().rewards.min_rank_correlation
        table = reviews.labels_of(labels.dataset, survey.reviewed)
        agreement = summary.human_agreement(table, survey.reviewed)
        print(f"Labels of iteration {labels.iteration} against {agreement.reviews} reviews:")
        print(f"  Spearman's rho {agreement.rank_correlation}; its lower bound has to reach {floor:.2f}")
        print(f"  on the other side of 0.5 {agreement.noise}")
    else:
        print("No sample has been drawn. Draw one: pt reviews write")
    for problem in survey.problems:
        print(problem)
    return 1 if survey.problems else 0


def _labels(settings: Deployment) -> RewardLabels:
    return LABELS.read(settings.store(), settings.latest().id)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
