"""That what the pages name is there: files, commands with their options, jobs, guards, and the hashes of the pins."""

import argparse
import ast
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from jobs.definitions import definitions
from jobs.pt import WORDS

ROOT = Path(__file__).parent.parent
PACKAGES = "pipeline|evals|k8s|assets|jobs|tests|benchmarks|docs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), ROOT / "CONTRIBUTING.md", ROOT / "k8s" / "README.md"]

SPANS = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
GUARDS = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Guards\n")[2].partition("\n## ")[0]
CONSTRAINTS = ROOT / "constraints"
WITHOUT = {"torch", "deepspeed"}
"""torch's build for CPUs is on another index, and DeepSpeed has no wheel."""
PIN = re.compile(r"^([\w.-]+)==([^\s;#]+)", re.MULTILINE)
HASHED = re.compile(r"^([\w.-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_path_of_a_page_exists(page: Path) -> None:
    paths = re.findall(rf"`((?:{PACKAGES})/[\w./-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in paths if not (ROOT / path).exists() and not (page.parent / path).exists()] == []


def test_the_seeds_page_counts_its_items() -> None:
    head, *sections = (ROOT / "docs" / "seeds.md").read_text().split("\n## ")
    tables = [each for each in sections if each[:3].isdigit()]
    counted = re.findall(r"^\| (\d{3}):.*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", head, re.MULTILINE)
    found = [
        [re.findall(rf"\| {what}[^|\n]*\|$", table, re.MULTILINE) for what in ("run", "rendered", "left out")]
        for table in tables
    ]
    assert counted == [
        (table[:3], *map(str, (sum(map(len, of)), *map(len, of)))) for table, of in zip(tables, found, strict=True)
    ]


def test_the_tree_in_the_readme_is_the_tree() -> None:
    tree = (ROOT / "README.md").read_text().partition("## The tree")[2].partition("```\n")[2].partition("```")[0]
    parent, named = "", set[str]()
    for line in tree.splitlines():
        name = line.split()[0].rstrip(",")
        parent = "" if not line.startswith(" ") else parent
        named.add(path := f"{parent}{name}")
        parent = parent or (path if name.endswith("/") else "")
    assert len(named) > 20
    assert [path for path in sorted(named) if not list(ROOT.glob(path))] == []


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
    for typed in commands(page.read_text(encoding="utf-8"), "pt"):
        _, word, *rest = typed
        if word.isupper() or word in ("--help", "--version"):
            continue
        assert word in WORDS, typed
        parser = import_module(WORDS[word].module).parser()
        assert list(faults(parser, rest)) == [], typed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_job_that_is_launched_is_there(page: Path) -> None:
    jobs = {job.name for job in definitions.resolve_all_job_defs()}
    for typed in commands(page.read_text(encoding="utf-8"), "dagster job launch"):
        named = typed[typed.index("-j") + 1] if "-j" in typed else ""
        assert named in jobs or "__" in named or not named or named.isupper(), typed


def test_a_word_that_is_not_there_is_found() -> None:
    text = "`pt rollout stauts`, and\n```\nA='x y' pt validate --recipe my.yaml --fast  # --slow\npt k8s lint R\n```\n"
    parsers = {word: import_module(WORDS[word].module).parser() for word in ("rollout", "validate", "k8s")}
    wrong = [list(faults(parsers[typed[1]], typed[2:])) for typed in commands(text, "pt")]
    assert wrong == [["stauts"], ["--fast"], []]


def test_each_guard_names_a_module_and_a_test_that_exist() -> None:
    rows = re.findall(r"^\| .+ \| `(\S+\.py)` \| `(\S+\.py)::(test_\w+)` \|$", GUARDS, re.MULTILINE)
    assert 0 < len(rows) == len([line for line in GUARDS.splitlines() if line.startswith("| ")]) - 1  # the head
    assert [module for module, _, _ in rows if not (ROOT / module).is_file()] == []
    defined = {file: _functions(file) for _, file, _ in rows}
    assert [(file, test) for _, file, test in rows if test not in defined[file]] == []
    assert [(file, test) for _, file, test in rows if "variant" in defined[file][test]] == []


def _functions(file: str) -> dict[str, set[str]]:
    """The functions of a file with the pytest marks that each carries as a whole."""
    if not (ROOT / file).is_file():
        return {}
    tree = ast.parse((ROOT / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {node.name: {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list} for node in functions}


def versions(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in pattern.finditer(text)}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_pin_has_its_hashes(name: str) -> None:
    pins = versions(PIN, (CONSTRAINTS / f"{name}.txt").read_text())
    text = (CONSTRAINTS / f"hashes-{name}.txt").read_text()
    assert versions(HASHED, text) == {package: version for package, version in pins.items() if package not in WITHOUT}
    assert re.sub(r"(?m)^#.*$", "", HASHED.sub("", text)).strip() == "", "nothing else is in it"
