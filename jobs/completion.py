"""`pt completion SHELL`: prints the completion of all words, their commands and options, made from their parsers.

bash: `pt completion bash > ~/.local/share/bash-completion/completions/pt`; zsh: into a file `_pt` on its `fpath`.
Exit codes: 0 done, 2 an unknown shell.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import shtab

from jobs.pt import WORDS


def main(arguments: Sequence[str]) -> int:
    print(shtab.complete(whole_parser(), parser().parse_args(arguments).shell))
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt completion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return options


def whole_parser() -> argparse.ArgumentParser:
    """Every word with its own parser below it. Imports all of them, which takes seconds."""
    options = argparse.ArgumentParser(prog="pt", description="Operate a deployment of preference-tuning.")
    commands = options.add_subparsers()
    for word, command in WORDS.items():
        below: argparse.ArgumentParser = import_module(command.module).parser()
        commands.add_parser(word, help=command.help, parents=[below], add_help=False)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
