"""`pt k8s lint | render | estimate`. The exit code is 0 without errors, 1 with errors, 2 when something cannot be
read."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from jobs.recipe_choice import add_recipe_arguments, chosen_recipe
from k8s.client import KubernetesClient, Refused, Unreachable, connect
from k8s.estimate import describe
from k8s.gang import example_gangs
from k8s.lint import GANG_RULES, RULES, Violation, lint_gang, lint_objects
from k8s.lint.manifests import Manifests, where
from k8s.render import render

Object = dict[str, Any]
Problems = Callable[[Object], list[str]]
"""`path: reason` each."""


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt k8s", description="A recipe's training on a cluster, before it runs.")
    commands = options.add_subparsers(required=True)
    lint = commands.add_parser("lint", help="find mistakes that a training would die of")
    lint.add_argument("--manifests", nargs="+", action="extend", default=[], metavar="FILE", help="YAML; - for stdin")
    lint.add_argument("--schemas", metavar="FOLDER", help="of GROUP_VERSION_KIND.json files, for custom kinds")
    lint.add_argument("--server", action="store_true", help="ask the kubeconfig's API server too, by a dry run")
    add_recipe_arguments(lint)
    lint.set_defaults(run=_lint)
    for name, run, says in (
        ("render", _render, "print the objects that a launch would apply, for an example iteration"),
        (
            "estimate",
            _estimate,
            "print hours and dollars; --override changes an input (compute.expected.step_s)",
        ),
    ):
        command = commands.add_parser(name, help=says)
        add_recipe_arguments(command)
        command.set_defaults(run=run)
    command.add_argument("--hours", nargs=2, type=float, metavar=("LOW", "HIGH"), help="of a training, as you measured")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    try:
        return chosen.run(chosen)
    except (ValueError, Unreachable) as error:
        print(error, file=sys.stderr)
        return 2


def read(file: str) -> list[Object]:
    """The objects of a file of manifests; `-` is standard input.

    Raises ValueError for what is no file, no YAML, or holds something else than objects.
    """
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}. Give files of YAML manifests.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not YAML: {error}. Mend the line it names.") from error
    for i, document in enumerate(documents):
        if document is not None and not (isinstance(document, dict) and isinstance(document.get("kind"), str)):
            what = type(document).__name__
            raise ValueError(f"Document {i + 1} of {file} ({what}) is no object: give it a kind, or leave it out.")
    return [document for document in documents if document is not None]


def _lint(chosen: argparse.Namespace) -> int:
    manifests = [obj for file in chosen.manifests for obj in read(file)]
    if chosen.manifests and not Manifests(manifests).objects:
        raise ValueError(f"No object in {chosen.manifests}: give --manifests FILE with objects in it.")
    checked, looked = _schemas(chosen.schemas)
    checks = {"schema": checked, **({"server": partial(_refusal, connect())} if chosen.server else {})}
    given = [*_asked(manifests, checks), *lint_objects(manifests)]
    told: list[tuple[str, list[Violation]]] = []
    if chosen.recipe or chosen.override or not chosen.manifests:
        recipe = chosen_recipe(chosen)
        if recipe.compute.kubernetes is None:
            told.append((f"{recipe.name}: trains on the machine of its Dagster step, no cluster", []))
        for gang in example_gangs(recipe) if recipe.compute.kubernetes is not None else ():
            rendered = render(gang)
            # As one set, for the references between them; what is wrong with the manifests alone is told once, below.
            together = [*_asked(rendered, checks), *lint_gang(gang, [*rendered, *manifests])]
            about = f"{gang.settings.backend}, {gang.nodes} x {gang.instance.name} ({gang.settings.capacity})"
            told.append((f"{recipe.name}: {gang.task}, {about}", [found for found in together if found not in given]))
    if chosen.manifests:
        told.append((f"{', '.join(chosen.manifests)}: {len(manifests)} objects", given))
    severities = [found.severity for _, findings in told for found in findings]
    errors, warnings = severities.count("error"), severities.count("warning")
    print(*(_report(title, findings) for title, findings in told), sep="\n")
    print(f"{looked()}\nerrors: {errors}, warnings: {warnings}, rules: {len(RULES) + len(GANG_RULES)}")
    return 1 if errors else 0


def _schemas(folder: str | None) -> tuple[Problems, Callable[[], str]]:
    """What is wrong with an object by its schema; and, at the end, what was asked."""
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(f"--schemas {folder} is no folder. Give one with GROUP_VERSION_KIND.json files.")
    try:
        from k8s.lint.schemas import Schemas
    except ImportError as error:
        missing = f"schemas need {error.name}: pip install 'preference-tuning[lint]'"
        if folder is not None:
            raise ValueError(missing) from error
        return lambda _: [], lambda: f"{missing}; none was asked"
    schemas = Schemas(Path(folder) if folder else None)
    custom = folder or "none for custom kinds (--schemas FOLDER)"
    return (
        lambda obj: schemas.problems(obj) if schemas.known(obj) else [],
        lambda: f"schemas: Kubernetes' own, {custom}; {len(schemas.unchecked)} of their rules could not be decided",
    )


def _refusal(client: KubernetesClient, obj: Object) -> list[str]:
    try:
        client.dry_run(obj)
    except Refused as refusal:
        return [f": {refusal}"]
    except (KeyError, TypeError) as error:
        return [f": without apiVersion and metadata.name no server can be asked ({error})"]
    return []


def _asked(objects: Iterable[Object], checks: dict[str, Problems]) -> list[Violation]:
    reason = "The API server refuses the object or, not asked to be strict, drops what it does not know."
    fix = "Write what this version of the kind has: kubectl explain shows it."
    return [
        Violation(rule=rule, severity="error", where=where(obj, path), problem=problem, reason=reason, fix=fix)
        for obj in Manifests(objects).objects
        for rule, problems in checks.items()
        for path, _, problem in (text.partition(": ") for text in problems(obj))
    ]


def _render(chosen: argparse.Namespace) -> int:
    objects = [each for gang in example_gangs(chosen_recipe(chosen)) for each in render(gang)]
    yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, width=120)
    return 0


def _estimate(chosen: argparse.Namespace) -> int:
    print(describe(chosen_recipe(chosen), chosen.hours))
    return 0


def _report(title: str, findings: Sequence[Violation]) -> str:
    lines = [title] if findings else [title, "  nothing to say"]
    for (rule, severity), group in groupby(findings, key=lambda found: (found.rule, found.severity)):
        same = list(group)
        lines.append(f"  {severity}: {rule}")
        lines += [f"    {found.where}: {found.problem}" for found in same]
        lines += [f"      why: {same[0].reason}", f"      fix: {same[0].fix}"]
    return "\n".join(lines) + "\n"
