"""That what the pages tell people to type is there: the words of `pt`, their options, the names of jobs."""

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from jobs.definitions import definitions
from jobs.pt import WORDS
from tests.test_pages import PAGES, ROOT

SPANS = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def commands(text: str, first: str) -> Iterator[list[str]]:
    """Each command of a page that begins with the word, split as a shell would: in code, alone or after variables."""
    for block, inline in SPANS.findall(text):
        lines = iter((block or inline).replace("\\\n", " ").splitlines())
        for line in lines:
            typed = re.match(rf"(?:[A-Z_]+=(?:'[^']*'|\"[^\"]*\"|\S*) )*({first} .*)", line.strip())
            if typed:
                command = typed[1]
                while command.partition("#")[0].count("'") % 2:  # a quotation over several lines
                    command += f" {next(lines)}"
                yield shlex.split(command, comments=True)


def faults(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[str]:
    """Options and sub-commands that the parser has not. Any other word may stand for a value."""
    below = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    for place, word in enumerate(words):
        if word.startswith("-"):
            if word.partition("=")[0] not in parser._option_string_actions:
                yield word
        elif below is not None and word != "|":
            if word.isupper() or word == "...":
                return
            if word not in below.choices:
                yield word
            elif "|" not in words[place + 1 : place + 2]:  # else an alternative: the last one's options follow
                yield from faults(below.choices[word], words[place + 1 :])
                return


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_word_and_option_of_pt_is_there(page: Path) -> None:
    for typed in commands(page.read_text(), "pt"):
        _, word, *rest = typed
        if word.isupper() or word in ("--help", "--version"):
            continue
        assert word in WORDS, typed
        parser = import_module(WORDS[word].module).parser()
        assert list(faults(parser, rest)) == [], typed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_job_that_is_launched_is_there(page: Path) -> None:
    jobs = {job.name for job in definitions.resolve_all_job_defs()}
    for typed in commands(page.read_text(), "dagster job launch"):
        named = typed[typed.index("-j") + 1] if "-j" in typed else ""
        assert named in jobs or "__" in named or not named or named.isupper(), typed


def test_a_word_that_is_not_there_is_found() -> None:
    text = "`pt rollout stauts`, and\n```\nA='x y' pt validate --recipe my.yaml --fast  # --slow\npt k8s lint R\n```\n"
    parsers = {word: import_module(WORDS[word].module).parser() for word in ("rollout", "validate", "k8s")}
    wrong = [list(faults(parsers[typed[1]], typed[2:])) for typed in commands(text, "pt")]
    assert wrong == [["stauts"], ["--fast"], []]
