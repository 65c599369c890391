"""The reference of the recipe, from the code: `python -m jobs.reference` writes docs/reference/recipe.md and
jobs/recipes/recipe.schema.json.

Owns how a field is described to a person and to an editor. What the fields are and mean is in `pipeline/recipe/`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from pipeline.recipe import Recipe
from pipeline.recipe.field_texts import DescribedJsonSchema, field_texts
from pipeline.recipe.section import Operational, Section, sections

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "recipe.md"
SCHEMA = ROOT / "jobs" / "recipes" / "recipe.schema.json"
HEAD = """\
# The recipe, field by field

Written by `python -m jobs.reference` from `pipeline/recipe/`: change the docstrings there, not this page. Each section
of the YAML file has a table. A field without a default has to be given, and an unknown field is an error. "may differ"
marks the operational fields: they may differ between the launches of one iteration and are no part of the recipe's
digest. Every other field stays as the iteration was begun with (`iterations/<id>/recipe.json`).
"""
COLUMNS = ("field", "type", "default", "launches", "meaning")
BAR = "\\|"
"""In a cell, what would end it."""

UNITS = {
    "dwell_s": "seconds each", "_s": "seconds", "days": "days", "steps": "steps", "shm_gb": "GiB", "_gb": "GB",
    "_mb": "MB", "_bytes": "bytes", "_chars": "characters", "_words": "words", "_tokens": "tokens", "_tflops": "TFLOPS",
}  # fmt: skip
"""What a number counts, by the end of its name: the first that fits."""
DOLLARS = {
    "usd_per_hour": "US dollars an hour", "usd_per_gb_month": "US dollars a GB and month",
    "usd_per_million": "US dollars a million tokens", "usd": "US dollars",
}  # fmt: skip
"""The same of prices, by a part of the name."""
WORDS: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false"}
BOUNDS = {Gt: ("gt", "over"), Ge: ("ge", "at least"), Lt: ("lt", "under"), Le: ("le", "at most")}
SHORTER = {"integer, over 0": "integer, at least 1", "number, at least 0, at most 1": "number from 0 to 1"}


class Table(NamedTuple):
    """One section of the recipe, or one of those that a field chooses from."""

    title: str
    about: str
    rows: list[tuple[str, ...]]
    """As COLUMNS names them."""


def main() -> None:
    PAGE.parent.mkdir(exist_ok=True)
    for path, text in ((PAGE, page()), (SCHEMA, schema())):
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))


def schema() -> str:
    """The recipe's JSON schema, for editors that check YAML."""
    draft = "https://json-schema.org/draft/2020-12/schema"
    described = Recipe.model_json_schema(schema_generator=DescribedJsonSchema)
    tree = {"$schema": draft, **described, "title": "Recipe of preference-tuning"}
    return json.dumps(tree, indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The reference as Markdown."""
    lines = [HEAD]
    for table in tables():
        lines += [f"## {table.title}", "", table.about, ""]
        rows = [COLUMNS, ("---",) * len(COLUMNS), *table.rows]
        lines += [*(f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows), ""]
    return "\n".join(lines)


def tables(
    kind: type[Section] = Recipe, title: str = "The recipe", about: str = "", prefix: str = "",
    values: Section | None = None, operational: bool = False,
) -> Iterator[Table]:  # fmt: skip
    """The table of one section, then those of the sections in it. `values`: the section where nothing is written."""
    rows: list[tuple[str, ...]] = []
    below: list[Iterator[Table]] = []
    for name, field in kind.model_fields.items():
        path, marked = f"{prefix}{field.alias or name}", operational or Operational in field.metadata
        value = field.default if values is None else getattr(values, name)
        meaning, inside = " ".join(field_texts(kind).get(name, "").split()), sections(field.annotation)
        for each in inside:
            head = f"`{path}`" + (
                f", `kind: {get_args(each.model_fields['kind'].annotation)[0]}`" if len(inside) > 1 else ""
            )
            head = f"An element of {head}" if get_origin(field.annotation) is tuple else head
            text = " ".join((each.__doc__ or meaning).split())
            below.append(tables(each, head, text, f"{path}.", value if isinstance(value, each) else None, marked))
        rows.append((f"`{path}`", type_of(name, field), shown(value), "may differ" if marked else "", meaning))
    yield Table(title, about or " ".join((kind.__doc__ or "").split()), rows)
    for each in below:
        yield from each


def type_of(name: str, field: FieldInfo) -> str:
    """A field's type in words, with its unit where it is a number that has one."""
    words = in_words(field.annotation, field.metadata)
    units = [text for part, text in DOLLARS.items() if part in name]
    units += [text for end, text in UNITS.items() if name.endswith(end)]
    return f"{words} ({units[0]})" if units and ("number" in words or "integer" in words) else words


def in_words(kind: Any, metadata: Any = ()) -> str:
    """A type for people. `metadata`: its bounds, where pydantic took them off the type."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return in_words(inside[0], (*inside[1:], *metadata))
    if origin is Literal:
        return ("one of " if len(inside) > 1 else "") + ", ".join(f"`{each}`" for each in inside)
    if origin in (Union, UnionType):
        options = [in_words(each, metadata) for each in inside if each is not type(None)]
        return ", or ".join(dict.fromkeys([*options, *["null"] * (type(None) in inside)]))
    if origin in (tuple, dict):
        return "mapping" if origin is dict else f"list of: {in_words(inside[0])}"
    if kind not in WORDS:
        return "section"
    flat = [each for item in metadata for each in (item.metadata if isinstance(item, FieldInfo) else [item])]
    known = [(name, word, item) for each, (name, word) in BOUNDS.items() for item in flat if isinstance(item, each)]
    words = ", ".join([WORDS[kind], *(f"{word} {getattr(item, name):,.15g}" for name, word, item in known)])
    return next((short + words.removeprefix(long) for long, short in SHORTER.items() if words.startswith(long)), words)


def shown(value: Any) -> str:
    """A default, as JSON and YAML have it."""
    if value is PydanticUndefined:
        return "to be given"
    if isinstance(value, Section):
        return "see its table"
    if isinstance(value, tuple) and any(isinstance(each, Section) for each in value):
        return ", ".join(f"`{{kind: {getattr(each, 'kind', '')}}}`" for each in value)
    text = json.dumps(value, ensure_ascii=False)
    return f"`{text}`" if len(text) < 60 else "see `pipeline/recipe/`"


if __name__ == "__main__":
    main()
