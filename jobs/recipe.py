"""`pt recipe explain [FIELD] | schema | show [RECIPE]`: what a recipe may say, and what one says.

Exit codes: 0 done, 2 there is no such field, or the recipe does not resolve (it says why).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from pydantic_core import PydanticUndefined

from jobs.recipe_choice import add_recipe_arguments, chosen_recipe
from pipeline.recipe import Recipe
from pipeline.recipe.section import Operational, Section, sections

BOUNDS = {"exclusiveMinimum": "over", "minimum": "at least", "exclusiveMaximum": "under", "maximum": "at most"}


class FieldText(NamedTuple):
    field: str
    type: str
    default: str
    launches: str
    """"may differ" between the launches of one iteration, or ""."""
    meaning: str


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    try:
        print("\n".join(asked.run(asked)))
    except ValueError as error:
        print(f"recipe: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt recipe", description=__doc__)
    commands = options.add_subparsers(dest="command", required=True)
    explain = commands.add_parser("explain", help="type, default and meaning of a field, or of all of a section")
    explain.add_argument("field", nargs="?", default="", help="such as training or training.learning_rate")
    explain.set_defaults(run=_explain)
    written = commands.add_parser("schema", help="the recipe's JSON schema, for editors that check YAML")
    written.set_defaults(run=lambda _: [json.dumps(schema(), indent=2, ensure_ascii=False)])
    shown = commands.add_parser("show", help="the recipe as JSON, with defaults and overrides")
    add_recipe_arguments(shown)
    shown.set_defaults(run=_show)
    return options


def schema() -> dict[str, Any]:
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, **Recipe.model_json_schema(), "title": "Recipe of preference-tuning"}


def fields(path: str) -> list[FieldText]:
    """The fields at and below a path. Raises ValueError where there are none."""
    every = list(field_texts(schema()))
    chosen = [row for row in every if not path or row.field == path or row.field.startswith(f"{path}.")]
    if not chosen:
        near = get_close_matches(path, [row.field for row in every], 1)
        hint = f"Did you mean {near[0]}?" if near else "To see all of them: pt recipe explain"
        raise ValueError(f"A recipe has no field {path}. {hint}")
    return chosen


def field_texts(
    described: Mapping[str, Any],
    kind: type[Section] = Recipe,
    prefix: str = "",
    values: Section | None = None,
    operational: bool = False,
) -> Iterator[FieldText]:
    """The fields of a section and of those in it. `values`: the section where nothing is written."""
    properties = (described if kind is Recipe else described["$defs"][kind.__name__])["properties"]
    for name, field in kind.model_fields.items():
        if (field.alias or name) not in properties:
            continue  # the tag of a method in a plan, which no recipe writes
        path, marked = f"{prefix}{field.alias or name}", operational or Operational in field.metadata
        value, written = field.default if values is None else getattr(values, name), properties[field.alias or name]
        kind_is = "Which of its kinds the section is." if name == "kind" else ""
        meaning = " ".join(written.get("description", kind_is).split())
        yield FieldText(path, type_of(written), _default(value), "may differ" if marked else "", meaning)
        for each in sections(field.annotation):
            below = value if isinstance(value, each) else None
            yield from field_texts(described, each, f"{path}.", below, marked)


def type_of(written: Mapping[str, Any]) -> str:
    """A type as people read it, of its JSON schema."""
    options = written.get("anyOf") or written.get("oneOf")
    if options:
        return " or ".join(dict.fromkeys(type_of(each) for each in options))
    if "enum" in written or "const" in written:
        return ", ".join(json.dumps(each) for each in written.get("enum", [written.get("const")]))
    if "$ref" in written:
        return "section"
    if written.get("type") == "array" and "items" in written:
        return f"list of {type_of(written['items'])}"
    bounds = [f"{text} {written[key]:,.15g}" for key, text in BOUNDS.items() if key in written]
    return ", ".join([written.get("type", "any"), *bounds])


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "to be given"
    several = isinstance(value, tuple) and any(isinstance(each, Section) for each in value)
    return "see below" if several or isinstance(value, Section) else json.dumps(value, ensure_ascii=False, default=str)


def _explain(asked: argparse.Namespace) -> Iterator[str]:
    for row in fields(asked.field):
        may = "; may differ between the launches of one iteration" if row.launches else ""
        yield f"{row.field}: {row.type}; default {row.default}{may}"
        if row.meaning:
            yield f"    {row.meaning}"


def _show(asked: argparse.Namespace) -> Iterator[str]:
    recipe = chosen_recipe(asked)
    yield json.dumps({"digest": recipe.digest(), "recipe": recipe.model_dump(mode="json")}, indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
