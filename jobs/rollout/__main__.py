"""`pt rollout COMMAND`: what a person types about the rollout, each command in a module of its own."""

import argparse
import sys
from collections.abc import Sequence

import jobs.rollout
from assets.resources import deployment
from jobs.rollout import COMMAND, FAILED, decide, history, plan, rollback, status


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    settings = deployment()
    try:
        return asked.run(settings, asked)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except KeyboardInterrupt:  # nothing is half done: each step of a decision is taken up by the next tick
        return 130
    except Exception as error:  # boundary: a person at a terminal; routers and stores have errors of their own
        print(f"{asked.command}: {error} ({type(error).__name__})", file=sys.stderr)
        return FAILED


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog=COMMAND, description=jobs.rollout.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(dest="command", required=True)
    for module in (status, plan, history, decide, rollback):
        module.add_to(commands.add_parser)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
