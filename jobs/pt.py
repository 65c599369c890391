"""`pt WORD ...`: what a person types about a deployment. Jobs are launched by `dagster job launch`.

Each word belongs to a module with `parser()` and `main(arguments)`, which is imported when it is typed. Exit codes:
those of the word; 2 for a word that there is not; 130 on Ctrl-C; 141 when the reader has gone (`| head`).
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pipeline.core.redaction import guard_output

INTERRUPTED, CLOSED_PIPE = 128 + signal.SIGINT, 128 + signal.SIGPIPE


class CommandWord(NamedTuple):
    """What answers to a word of the command line."""

    module: str
    help: str


WORDS = {
    "init": CommandWord("jobs.init", "make a project: recipe, dagster.yaml, .env and a model to begin with"),
    "status": CommandWord("jobs.status", "where the deployment stands, on one screen, and what to type next"),
    "report": CommandWord("jobs.report", "a page of an iteration, and of all of them, for people who run no command"),
    "validate": CommandWord("jobs.validate", "check a deployment without a run: recipe, model, disk, source, gate"),
    "import": CommandWord("jobs.imports", "say what a file of data is, and write the recipe's section that reads it"),
    "recipe": CommandWord("jobs.recipe", "the recipe's fields explained, its JSON schema, and the resolved one"),
    "retry": CommandWord("jobs.retry", "a finished stage again, and all below it"),
    "rollout": CommandWord("jobs.rollout", "where the rollout stands, and every decision about it"),
    "reviews": CommandWord("jobs.reviews", "sheets of labels for people to score"),
    "governance": CommandWord("jobs.governance", "forget a user, verify the audit log, what retention would take"),
    "models": CommandWord("jobs.models", "ask a base model's folder what speaks against training it"),
    "evals": CommandWord("evals.__main__", "score a model or compare two, recompute a verdict"),
    "k8s": CommandWord("jobs.cluster", "lint, render and estimate a training on a cluster"),
    "serve": CommandWord("jobs.serve", "keep the embedded gateway running"),
    "ui": CommandWord("jobs.ui", "Dagster and MLflow on 127.0.0.1"),
    "clean": CommandWord("jobs.clean", "remove what runs wrote here, and keep the audit logs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    if arguments is None:
        _read_env_file()
    guard_output()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    if not typed or typed[0] not in WORDS:
        return _without_word(typed)
    try:
        code: int = import_module(WORDS[typed[0]].module).main(typed[1:])
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # As a program that the signal ends; what is still to be written has to go somewhere at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def _read_env_file() -> None:
    """What `dagster` commands read from the working directory's `.env` too; what the environment says already stays."""
    if Path(".env").is_file():
        from dotenv import dotenv_values

        for name, value in dotenv_values(".env").items():
            if value is not None and name != "DAGSTER_HOME":  # commands look for an instance here by themselves
                os.environ.setdefault(name, value)


def _without_word(typed: Sequence[str]) -> int:
    options = argparse.ArgumentParser(
        prog="pt",
        description="Operate a deployment of preference-tuning. A job is launched by: dagster job launch -j "
        "preference_tuning",
        epilog="pt WORD --help says more. Each command's help has its exit codes.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=14),
    )
    options.add_argument("--version", action="store_true", help="print the version")
    commands = options.add_subparsers(metavar="WORD")
    for word, command in WORDS.items():
        commands.add_parser(word, help=command.help)
    chosen = options.parse_args(typed)  # ends by itself on --help and on a word that there is not
    if chosen.version:
        from importlib.metadata import version

        print(version("preference-tuning"))
        return 0
    options.print_help(sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
