"""`pt k8s lint | render | estimate`: what a launch would put into a cluster, before it does.

`lint RECIPE... --manifests FILE...` judges the gang of each recipe together with static manifests (`-`: standard input,
as `kubectl kustomize` writes it): schemas and their CEL rules first, the manifests' admission policies, then rules of
meaning; as text, `--json` or `--sarif`. The exit code is 0 without errors, 1 with errors, 2 when something cannot be
read, 141 when nobody reads on (`| head`).
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from k8s.gang import Gang, evaluation_gang, example
from k8s.lint import GANG_RULES, RULES, Violation, lint_admission, lint_gang, lint_objects, lint_schemas
from k8s.lint.charges import describe
from k8s.lint.manifests import Manifests
from k8s.lint.memory import RECIPE_RULES, lint_memory
from k8s.lint.pods import where
from k8s.lint.report import FaultPlace, Linted, as_json, as_sarif
from k8s.render import render
from pipeline.core import layout
from pipeline.recipe import Recipe, load
from pipeline.recipe.overrides import NOT_YAML

if TYPE_CHECKING:
    from k8s.lint.schemas import Schemas  # its libraries are an extra

Form = Literal["text", "json", "sarif"]


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt k8s", description="A recipe's training on a cluster, before it runs.")
    commands = options.add_subparsers(required=True)
    lint = commands.add_parser("lint", help="find mistakes that the API server would take")
    lint.add_argument("recipes", nargs="*", metavar="RECIPE")
    lint.add_argument("--manifests", nargs="+", action="extend", default=[], metavar="FILE", help="YAML; - for stdin")
    lint.add_argument("--schemas", metavar="FOLDER", help="of GROUP_VERSION_KIND.json files, checked first")
    form = lint.add_mutually_exclusive_group()
    for name in ("json", "sarif"):
        form.add_argument(f"--{name}", dest="form", action="store_const", const=name, default="text")
    lint.set_defaults(run=lambda chosen: _lint(chosen.recipes, chosen.manifests, chosen.schemas, chosen.form))
    for name, run, says in (
        ("render", _render, "print the objects that a launch would apply, for an example iteration"),
        ("estimate", _estimate, "print what a launch takes and costs"),
    ):
        command = commands.add_parser(name, help=says)
        command.add_argument("recipe", metavar="RECIPE")
        command.set_defaults(run=lambda chosen, run=run: run(chosen.recipe))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        code = chosen.run(chosen)
        sys.stdout.flush()
        return code
    except ValueError as error:
        print(error, file=sys.stderr)
    except OverflowError as error:
        print(f"A number of the recipe is too large to compute with: {error}. Lower the largest.", file=sys.stderr)
    except BrokenPipeError:
        # As a program that the signal ends; what is still to be written has to go somewhere at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return 2


def gang_of_recipe(recipe: Recipe) -> Gang:
    """The gang that the recipe would get for an example iteration.

    Raises ValueError for a recipe that trains without a cluster, an instance type that is not known, or a time-out
    beyond 32 bits.
    """
    return example(recipe.name, recipe.data_root, recipe.compute, recipe.training)


def gangs_of_recipe(recipe: Recipe) -> list[Gang]:
    """That gang, and the one of its evaluation where the recipe has a pod for it. Raises as `gang_of_recipe`."""
    gangs = [gang_of_recipe(recipe)]
    if recipe.compute.evaluation is not None:
        path = Path(recipe.data_root, layout.iteration("example", layout.EVAL_PLAN))
        gangs.append(evaluation_gang("example", "0" * 64, path, recipe.compute))
    return gangs


def read(file: str) -> list[dict[str, Any]]:
    """The objects of a file of manifests; `-` is standard input.

    Raises ValueError for what is no file, no YAML, or holds something else than objects.
    """
    return [document for document, _ in _documents(file)]


def _documents(file: str) -> list[tuple[dict[str, Any], int]]:
    """The objects of a file and the line, from 1, on which each begins. Raises as `read` does."""
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        documents = list(yaml.safe_load_all(text))
        lines = [node.start_mark.line + 1 if node else 1 for node in yaml.compose_all(text, yaml.SafeLoader)]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}. Give files of YAML manifests.") from error
    except NOT_YAML as error:
        raise ValueError(f"{file} is not YAML: {error}. Mend the line it names.") from error
    for i, document in enumerate(documents):
        if document is not None and not (isinstance(document, dict) and isinstance(document.get("kind"), str)):
            what = type(document).__name__
            raise ValueError(f"Document {i + 1} of {file} ({what}) is no object: give it a kind, or leave it out.")
    return [(document, line) for document, line in zip(documents, lines, strict=True) if document is not None]


def _lint(recipes: Sequence[str], files: Sequence[str], folder: str | None, form: Form) -> int:
    if not recipes and not files:
        raise ValueError("Nothing to lint: give recipes, or --manifests FILE.")
    manifests: list[dict[str, Any]] = []
    places: dict[str, FaultPlace] = {}
    for file in files:
        for document, line in _documents(file):
            manifests.append(document)
            for obj in Manifests([document]).objects:
                places.setdefault(where(obj), FaultPlace("stdin" if file == "-" else file, line))
    if files and not places:
        raise ValueError(f"No object in {', '.join(files)}: give manifests, such as `kubectl kustomize` writes.")
    schemas = _schemas(folder)
    checked = (lambda objects: lint_schemas(objects, schemas)) if schemas else (lambda _: [])
    admitted = _admission(manifests if recipes else [])
    given = [*checked(manifests), *lint_objects(manifests)]
    subjects: list[Linted] = []
    local: list[str] = []
    for file in recipes:
        recipe = load(file)
        if recipe.compute.kubernetes is None:
            local.append(file)
            continue
        for gang in gangs_of_recipe(recipe):
            rendered = render(gang)
            # As one set, for the references between them; what is wrong with the manifests alone is told once, below.
            together = [*checked(rendered), *admitted(rendered), *lint_memory(recipe, gang)]
            together += lint_gang(gang, [*rendered, *manifests])
            findings = [f for f in together if f not in given]
            charges = charged([*rendered, *manifests])
            subjects.append(Linted(f"{file}: {_about(gang)}", FaultPlace(file, 1), charges, findings))
    if files:
        subjects.append(Linted(f"{', '.join(files)}: {len(manifests)} objects", FaultPlace(files[0], 1), (), given))
    errors = sum(finding.severity == "error" for subject in subjects for finding in subject.findings)
    if form == "text":
        _print_text(subjects, local, errors, schemas)
    else:
        print((as_json if form == "json" else as_sarif)(subjects, places))
    return 1 if errors else 0


def _print_text(subjects: Sequence[Linted], local: Sequence[str], errors: int, schemas: Schemas | None) -> None:
    for file in local:
        print(f"{file}: trains on the machine of its Dagster step, no cluster\n")
    for subject in subjects:
        print(_report(subject.title, subject.findings, subject.charges))
    if schemas is None:
        print("schemas: none (--schemas FOLDER; extra lint): what the API server itself refuses was not checked")
    else:
        open_rules = len(schemas.unchecked())
        print(f"schemas: {schemas.folder}, {open_rules} of the rules that were met could not be decided")
    warnings = sum(len(subject.findings) for subject in subjects) - errors
    number = len(RULES) + len(GANG_RULES) + len(RECIPE_RULES)
    print(f"errors: {errors}, warnings: {warnings}, rules: {number}")


def _schemas(folder: str | None) -> Schemas | None:
    if folder is None:
        return None
    if not Path(folder).is_dir():
        raise ValueError(f"--schemas {folder} is no folder. Give one with GROUP_VERSION_KIND.json files.")
    try:
        from k8s.lint.schemas import Schemas
    except ImportError as error:
        raise ValueError(f"Schemas need {error.name}: pip install 'preference-tuning[lint]'.") from error
    return Schemas(Path(folder))


def _admission(manifests: Sequence[dict[str, Any]]) -> Callable[[Sequence[dict[str, Any]]], list[Violation]]:
    """What the policies among the manifests refuse of a gang. Raises ValueError without the extra to ask them."""
    if not any(document["kind"] == "ValidatingAdmissionPolicy" for document in manifests):
        return lambda _: []
    try:
        importlib.import_module("celpy")
    except ImportError as error:
        what = "The policies among the manifests need"
        raise ValueError(f"{what} {error.name}: pip install 'preference-tuning[lint]'.") from error
    return lambda objects: lint_admission(objects, manifests)


def _render(file: str) -> int:
    objects = [each for gang in gangs_of_recipe(load(file)) for each in render(gang)]
    yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, width=120)
    return 0


def _estimate(file: str) -> int:
    from k8s.estimate import describe

    print(describe(load(file)))
    return 0


def _about(gang: Gang) -> str:
    settings = gang.settings
    nodes = f"{gang.nodes} x {gang.instance.name} ({settings.capacity})"
    if gang.task == "evaluation":
        return f"its evaluation: {settings.backend}, {nodes}, {gang.processes} devices"
    return f"{settings.backend}, {nodes}, {gang.processes} processes each"


def charged(objects: Sequence[dict[str, Any]]) -> list[str]:
    """Which of Kueue's quotas the workloads among these objects would take, a line for each pod set."""
    manifests = Manifests(objects)
    return [line for workload in manifests.workloads for line in describe(manifests, workload)]


def _report(title: str, findings: Iterable[Violation], charges: Sequence[str] = ()) -> str:
    lines = [title, *(f"  charged: {line}" for line in charges)]
    empty = len(lines)
    for (rule, severity), group in groupby(findings, key=lambda f: (f.rule, f.severity)):
        same = list(group)
        lines.append(f"  {severity}: {rule}")
        lines += [f"    {finding.where}: {finding.problem}" for finding in same]
        lines += [f"      why: {same[0].reason}", f"      fix: {same[0].fix}"]
    if len(lines) == empty:
        lines.append("  nothing to say")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
