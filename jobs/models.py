"""`pt models check FOLDER [--json]`: what a base model is, and what speaks against training it; seconds, on a CPU.

It asks for files, architecture, tokenizer, chat template, weights and adapters. `pt validate` asks the same of a
recipe's model, with its chat settings. Exit codes: 0 it can be trained, 1 it cannot (the errors say what to do).
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from evals.base_check import check_base
from jobs.screen import GREEN, RED, YELLOW, named, paint, terminal_width
from pipeline.recipe import Lora

COLOURS = {"ok": GREEN, "warning": YELLOW, "error": RED}
LEVEL_WIDTH = 9


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    found = check_base(asked.folder, Lora())
    if asked.json:
        print(json.dumps([finding._asdict() for finding in found], indent=2))
    else:
        for level, question, text in found:
            first, *more = named(question, text, terminal_width() - LEVEL_WIDTH)
            mark = paint(f"{level:<{LEVEL_WIDTH}}", COLOURS[level], sys.stdout.isatty())
            print(mark + first, *(" " * LEVEL_WIDTH + line for line in more), sep="\n")
    return int(any(finding.level == "error" for finding in found))


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt models", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = options.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="ask a model's folder every question of the base check")
    check.add_argument("folder", type=Path, help="directory with config.json, weights and tokenizer")
    check.add_argument("--json", action="store_true", help="a list of findings instead of lines")
    return options
