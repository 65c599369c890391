"""A deployment checked without a run: `pt validate [RECIPE] [--override K=V ...]`.

The recipe, the environment, the base model, the source, the gate's suites, and each place that a run writes, tried by
what the run does there. Files of a local source are read for empty and cut ones; their rows are the traces stage's to
judge. Nothing is left behind. Exit codes: 0
nothing speaks against a launch, 1 something does (it says what), 2 it could not be checked (it says why).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from assets.naming import launch_command
from assets.preflight import CheckedLine, check, source_lines
from assets.resources import Deployment
from jobs.recipe_choice import add_recipe_arguments, recipe_choice, typed
from jobs.screen import GREEN, RED, paint
from pipeline.recipe import load


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    lines: list[CheckedLine] = []
    try:
        for line in _lines(asked):
            lines.append(line)
            if not asked.json:
                mark = paint(f"{'ok' if line.fine else 'PROBLEM':<7}", GREEN if line.fine else RED, sys.stdout.isatty())
                print(f"{mark}  {line.text}", flush=True)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except Exception as error:  # boundary: a person at a terminal; drivers have errors of their own
        print(f"validate: {error} ({type(error).__name__})", file=sys.stderr)
        return 2
    is_fine = all(line.fine for line in lines)
    if asked.json:
        print(json.dumps({"fine": is_fine, "lines": [line._asdict() for line in lines]}, indent=2))
    elif is_fine:
        choice = recipe_choice(asked)
        print(f"next: {typed(launch_command(prefix=load(*choice).key_prefix), choice)}")
    return 0 if is_fine else 1


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt validate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_recipe_arguments(options)
    options.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return options


def _lines(asked: argparse.Namespace) -> Iterator[CheckedLine]:
    try:
        deployment = Deployment(**recipe_choice(asked)._asdict())
    except ValueError as error:
        yield CheckedLine(False, str(error))
        return
    yield from check(deployment, log=lambda text: print(text, file=sys.stderr))
    yield from source_lines(deployment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
