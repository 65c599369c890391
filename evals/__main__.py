"""Commands on evidence bundles.

    python -m evals verify BUNDLE [DIGEST]                  recompute a verdict offline
    python -m evals export BUNDLE --inspect DIR --python P  write it as logs that `inspect view` reads

The exit code is 0 when the bundle is intact, whatever the verdict, and 1 when it is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from evals.bundle import verify
from evals.libraries.environment import library_environments
from evals.libraries.export import export


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals", description="Check evidence bundles.")
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
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "export":
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


if __name__ == "__main__":
    sys.exit(main())
