"""Reviews at a terminal: `pt reviews write` draws this week's sample of the newest iteration's labels
and says where its sheet is. Exit codes: 0 done, 2 it could not be done (it says why)."""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from assets.records import LABELS
from assets.resources import Deployment, deployment
from pipeline.recipe.rewards import DEFAULT_RUBRIC
from pipeline.rewards import reviews
from pipeline.traces.erased import shared_lock

HOW = """\
Fill it in and save it as CSV (UTF-8) under the same name; it is read at the next labelling. reference: the answer that
you would give, the answer alone, where you know it; a golden suite is made of these. Leave a cell empty where you
cannot tell. An apostrophe before = + - or @ keeps spreadsheets from taking a text for a formula. Long texts are cut;
they are whole in sample.jsonl. score: from 1 to 5; 4.5 is a score too."""


def main(arguments: Sequence[str]) -> int:
    parser().parse_args(arguments)
    try:
        print(write_sample(deployment()))
    except (ValueError, OSError) as error:
        print(f"write: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt reviews", description=__doc__)
    options.add_subparsers(dest="command", required=True).add_parser("write", help="draw this week's sheet")
    return options


def write_sample(settings: Deployment) -> str:
    """Publish the week's sheet, unless there is one; says where it is. No user is forgotten meanwhile."""
    iteration, store, week = settings.latest(), settings.store(), reviews.week_of(datetime.now(UTC))
    section = settings.recipe_of(iteration).rewards
    with shared_lock(store):
        sheet = reviews.write(store, LABELS.read(store, iteration.id), week, section.review_rows)
    if sheet is None:
        return f"Iteration {iteration.id} has no labels to review."
    return f"The sheet of {week} is {sheet}. {HOW}\n{section.judge.rubric if section.judge else DEFAULT_RUBRIC}"
