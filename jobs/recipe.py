"""`pt recipe explain [FIELD] | schema | show`: what a recipe may say, and what the deployment's says.

`explain training.learning_rate` has a field's type, default and meaning, `explain training` those of a section, and
`explain` alone all of them; `schema` is the JSON schema for editors; `show` is the deployment's recipe with every
default and override filled in. Exit codes: 0 done, 2 there is no such field, or the recipe does not resolve (it says
why).
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from jobs.reference import COLUMNS, schema, tables


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
    explain.add_argument("--json", action="store_true", help="the same as a JSON array")
    explain.set_defaults(run=_explain)
    commands.add_parser("schema", help="the recipe's JSON schema").set_defaults(run=lambda _: [schema().rstrip()])
    shown = commands.add_parser("show", help="the deployment's recipe as JSON, with defaults and overrides")
    shown.set_defaults(run=_show)
    return options


def fields(path: str) -> Sequence[Mapping[str, str]]:
    """The fields at and below a path, in the order of the reference. Raises ValueError where there are none."""
    rows = [row for table in tables() for row in table.rows]
    every: list[Mapping[str, str]] = [dict(zip(COLUMNS, (row[0].strip("`"), *row[1:]), strict=True)) for row in rows]
    chosen = [row for row in every if not path or row["field"] == path or row["field"].startswith(f"{path}.")]
    if not chosen:
        near = get_close_matches(path, [row["field"] for row in every], 1)
        hint = f"Did you mean {near[0]}?" if near else "To see all of them: pt recipe explain"
        raise ValueError(f"A recipe has no field {path}. {hint}")
    return chosen


def _explain(asked: argparse.Namespace) -> Iterator[str]:
    chosen = fields(asked.field)
    if asked.json:
        yield json.dumps(chosen, indent=2, ensure_ascii=False)
        return
    for row in chosen:
        may = "; may differ between the launches of one iteration" if row["launches"] else ""
        yield f"{row['field']}: {row['type']}; default {row['default']}{may}".replace("`", "")
        if row["meaning"]:
            yield f"    {row['meaning']}"


def _show(asked: argparse.Namespace) -> Iterator[str]:
    from assets.resources import deployment  # Dagster takes seconds, and a field is explained without it

    recipe = deployment().recipe()
    yield json.dumps({"digest": recipe.digest(), "recipe": recipe.model_dump(mode="json")}, indent=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
