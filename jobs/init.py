"""`pt init [FOLDER]`: makes a project that needs this package alone, and no copy of its repository.

Owns what a project is made of: `recipe.yaml`, which every command typed there takes by default, Dagster's
`dagster.yaml` and `.env`, a `pyproject.toml` that names the jobs and pins this version, and for the embedded worlds the
small model that they begin with. Refuses to write over a file. Exit codes: 0 made; 2 a file is in the way, or the
folder cannot be written.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from pipeline import demo
from pipeline.demo import desk

PROJECT = Path(__file__).parent / "project"
RECIPES = Path(__file__).parent / "recipes"
MODELS = {"embedded": demo.MODEL_DIR, "desk": desk.MODEL_DIR}
"""Recipes whose model comes with this package."""
STARTS = (*MODELS, "own")
MODEL = "model"
IGNORED = "/.dagster/\n/data/\n/logs/\n/kept-*/\n/.venv/\n"


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    folder = Path(asked.folder)
    try:
        write(folder, asked.start)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(after(folder, asked.start)))
    return 0


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="pt init", description=__doc__)
    options.add_argument("folder", nargs="?", default=".", help="where to; the working directory by default")
    options.add_argument(
        "--start",
        choices=STARTS,
        default="embedded",
        help="embedded: arithmetic, with reference answers; desk: a support desk, without; own: your model and traces",
    )
    return options


def write(folder: Path, start: str) -> None:
    """Make the project, all of it or nothing. Raises FileExistsError where one of its files is there."""
    files = contents(folder, start)
    model = MODELS.get(start)
    names = [*files, *([MODEL] if model else [])]
    if there := [name for name in names if (folder / name).exists()]:
        raise FileExistsError(f"{folder.absolute()} has {', '.join(there)} already. Choose an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if model:
        shutil.copytree(model, folder / MODEL)


def contents(folder: Path, start: str) -> Mapping[str, str]:
    """The text of each file."""
    return {
        "recipe.yaml": _recipe(start),
        "dagster.yaml": (PROJECT / "dagster.yaml").read_text(encoding="utf-8"),
        ".env": (PROJECT / "env").read_text(encoding="utf-8"),
        ".gitignore": IGNORED,
        "pyproject.toml": _pyproject(folder),
    }


def after(folder: Path, start: str) -> list[str]:
    """What to type next."""
    lines = [f"A project is in {folder.absolute()}."]
    if folder.absolute() != Path.cwd():
        lines.append(f"  cd {folder}")
    if start == "own":
        lines.append("  $EDITOR recipe.yaml                       # what is marked CHANGE")
    return [
        *lines,
        "  pt validate                               # recipe, model, disk, source and gate, before anything runs",
        "  dagster job launch -j preference_tuning   # one iteration",
        "  dagster job launch -j canary_rollout      # its rollout, if the gate let it pass",
        "  pt summary                                # what came out",
        "  pt ui                                     # Dagster and MLflow on 127.0.0.1",
    ]


def _recipe(start: str) -> str:
    """The recipe with the project's own model, and the schema that editors check it by."""
    text = (RECIPES / f"{start}.yaml").read_text(encoding="utf-8")
    schema = RECIPES / "recipe.schema.json"
    text = text.replace("$schema=recipe.schema.json", f"$schema={schema.as_uri()}")
    if start in MODELS:
        text, count = re.subn(r"(?m)^(  uri: )pipeline/demo/\S+$", rf"\g<1>{MODEL}", text)
        assert count == 1, f"{start}.yaml names its model once"
    return text


def _pyproject(folder: Path) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", folder.absolute().name.lower()).strip("-") or "tuning"
    return (
        f'[project]\nname = "{name}"\nversion = "0"\nrequires-python = ">=3.11,<3.13"\n'
        f'dependencies = ["preference-tuning[train]=={version("preference-tuning")}"]\n\n'
        '[tool.dagster]\nmodule_name = "jobs.definitions"\ncode_location_name = "preference_tuning"\n'
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
