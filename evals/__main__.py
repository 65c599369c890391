"""`python -m evals verify BUNDLE [DIGEST]`: recompute a verdict offline.

The exit code is 0 when the bundle is intact, whatever the verdict, and 1 when it is not.
"""

from __future__ import annotations

import argparse
import sys

from evals.bundle import verify


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evals", description="Check evidence bundles.")
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("verify", help="recompute the verdict of an evidence bundle and print it as JSON")
    check.add_argument("bundle", help="directory of the bundle")
    check.add_argument("digest", nargs="?", default="", help="the digest that the bundle must have")
    chosen = parser.parse_args(arguments)
    try:
        print(verify(chosen.bundle, chosen.digest).model_dump_json(indent=2))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
