"""`pt report [ITERATION] [--out FILE]`: a page for people who run no command.

One HTML file of an iteration (the newest, unless it is named) and of what all of them add up to: funnel, labels,
decision, training, evaluation with its intervals, rollout, cost and lineage. It needs no server, opens from disk and
prints; no text of a user is in it. Without --out it lies with the records, where each iteration's end writes it too.
Exit codes: 0 done (it says where the page is), 2 there is no such iteration, or a file cannot be read or written (it
says which).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from assets.environment import chosen
from assets.naming import launch_command
from assets.report import write_report
from jobs.recipe_choice import typed
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.recipe import load


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        recipe = load(*chosen())
        store, id = Store(recipe.data_root), asked.iteration
        if not id:
            newest = store.read(layout.LATEST, Iteration)
            if newest is None:
                launch = typed(launch_command(prefix=recipe.key_prefix))
                raise ValueError(f"There is no iteration yet. Launch the whole job: {launch}")
            id = newest.id
        path = write_report(store, recipe, id, time.time(), asked.out.absolute() if asked.out is not None else None)
    except (ValueError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{path}\nOpen it in a browser: {path.as_uri()}")
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt report", description=__doc__)
    options.add_argument("iteration", nargs="?", default="", help="its id; the newest one, unless it is given")
    options.add_argument("--out", type=Path, help="where to write the page; with the records, unless it is given")
    return options
