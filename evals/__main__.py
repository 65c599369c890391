"""Commands on evidence bundles, and on the suites of evaluation libraries.

    python -m evals verify BUNDLE [DIGEST]                  recompute a verdict offline
    python -m evals export BUNDLE --inspect DIR --python P  write it as logs that `inspect view` reads
    python -m evals list RECIPE --inspect-python P          list the items of the recipe's library tasks

The exit code is 0 when it is done (of a bundle: when it is intact, whatever the verdict), and 1 when it is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evals.bundle import verify
from evals.libraries.environment import LibraryEnvironments, library_environments
from evals.libraries.export import export
from evals.libraries.tasks import ensure_listed
from pipeline.recipe import load
from pipeline.recipe.suites import LibrarySuite
from pipeline.storage import Store


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals", description="Evidence bundles and library suites.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    logs = commands.add_parser("export", help="write both models' answers as logs for a viewer")
    logs.add_argument("bundle", type=Path, help="directory of the bundle")
    logs.add_argument("--inspect", type=Path, metavar="DIR", required=True, help="write logs for `inspect view` here")
    logs.add_argument(
        "--python",
        required=True,
        help='the Python of an environment made from constraints-inspect.txt: --python "$INSPECT_PYTHON"',
    )
    listed = commands.add_parser("list", help="list the items of a recipe's library tasks, below its data root")
    listed.add_argument("recipe", type=Path, help="the recipe's file")
    listed.add_argument("--inspect-python", default="", help='for suites of the kind inspect: "$INSPECT_PYTHON"')
    listed.add_argument("--lm-eval-python", default="", help='for suites of the kind lm_eval: "$LM_EVAL_PYTHON"')
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "list":
            _list(chosen.recipe, library_environments(chosen.inspect_python, chosen.lm_eval_python))
        elif chosen.command == "export":
            _export(chosen.bundle, chosen.inspect, chosen.python)
        else:
            print(verify(chosen.bundle, chosen.digest).model_dump_json(indent=2))
    except (ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _export(bundle: Path, folder: Path, python: str) -> None:
    for log in export(bundle, folder, library_environments(inspect_python=python).inspect):
        print(f"{log.path} ({log.bytes:,} bytes)")
    print(f"Read them: inspect view --log-dir {folder}")


def _list(file: Path, environments: LibraryEnvironments) -> None:
    recipe = load(file)
    store = Store(recipe.data_root)
    for section in recipe.evaluation.suites:
        if isinstance(section, LibrarySuite):
            path = ensure_listed(section, store, environments, print)
            print(f"{section.name}: {len(path.read_text().splitlines()):,} items in {path}")


if __name__ == "__main__":
    sys.exit(main())
