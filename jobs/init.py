"""`pt init [FOLDER]`: makes a project that needs this package alone, and no copy of its repository.

It writes `recipe.yaml`, which every command typed there takes by default, Dagster's `dagster.yaml` and `.env`, a
`pyproject.toml` that names the jobs and pins this version, and for the embedded worlds the small model that they begin
with. `--compose` adds a `compose.yaml` with PostgreSQL, and the secrets and keys that it needs. `--models NAME...`
writes a recipe and a code location for each model instead, in one Dagster.
No file is written over. Exit codes: 0 made; 2 a file is in the way, or the folder cannot be written.
"""

import argparse
import os
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
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
PACKAGE = "tuning"
"""Of a project with several models: the definitions of each."""
DEFINITIONS_OF = '''"""Jobs, assets, schedules and sensors of {name}.yaml."""

from pathlib import Path

from assets.environment import Choice
from jobs.definitions import definitions_of

definitions = definitions_of(Choice(str(Path(__file__).parent.parent / "{name}.yaml"), []))
'''
MARK_KEYS, KEY_FILE = "mark-keys", "PREFERENCE_TUNING_MARK_KEY_FILE"
SECRET = frozenset({".env", MARK_KEYS})
IGNORED = "/.dagster/\n/data/\n/logs/\n/kept-*/\n/.venv/\n"


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    folder = Path(asked.folder)
    try:
        write(folder, asked.start, asked.compose, asked.models)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(after(folder, asked.start, asked.compose, asked.models)))
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
    kind = options.add_mutually_exclusive_group()
    kind.add_argument("--compose", action="store_true", help="for Docker Compose on one host, with PostgreSQL")
    kind.add_argument("--models", nargs="+", default=[], metavar="NAME", help="several models in one Dagster")
    return options


def write(folder: Path, start: str, compose: bool = False, models: Sequence[str] = ()) -> None:
    """Make the project, all of it or nothing. Raises FileExistsError where one of its files is there."""
    files = contents(folder, start) | (of_compose() if compose else {})
    if models:
        files = of_models(files, models)
    model = MODELS.get(start)
    names = [*files, *([MODEL] if model else [])]
    if there := [name for name in names if (folder / name).exists()]:
        raise FileExistsError(f"{folder.absolute()} has {', '.join(there)} already. Choose an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        if name in SECRET and compose:
            (folder / name).touch(mode=0o600)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if model:
        shutil.copytree(model, folder / MODEL)


def contents(folder: Path, start: str) -> dict[str, str]:
    """The text of each file of a project on one machine."""
    return {
        "recipe.yaml": _recipe(start),
        "dagster.yaml": (PROJECT / "dagster.yaml").read_text(encoding="utf-8"),
        ".env": (PROJECT / "env").read_text(encoding="utf-8"),
        ".gitignore": IGNORED,
        "pyproject.toml": _pyproject(folder),
    }


def of_models(files: dict[str, str], models: Sequence[str]) -> dict[str, str]:
    """The files of a project in which each model has a recipe, a data root and a code location of its own."""
    recipe, kept = re.sub(r"(?m)^data_root: .*\n", "", files["recipe.yaml"]), dict(files)
    del kept["recipe.yaml"]
    kept[f"{PACKAGE}/__init__.py"] = '"""The models of this project."""\n'
    kept["pyproject.toml"] = files["pyproject.toml"].partition("[tool.dagster]")[0]
    for name in models:
        words = f"name: {name}\nkey_prefix: {name}\ndata_root: data/{name}"
        kept[f"{name}.yaml"] = re.sub(r"(?m)^name: .*$", words, recipe, count=1)
        kept[f"{PACKAGE}/{name}.py"] = DEFINITIONS_OF.format(name=name)
    locations = [f"  - python_module: {{module_name: {PACKAGE}.{name}, location_name: {name}}}" for name in models]
    return {**kept, "workspace.yaml": "\n".join(["load_from:", *locations, ""])}


def of_compose() -> dict[str, str]:
    """What is added and written otherwise for Docker Compose. Passwords and keys are drawn."""
    variables = {
        "OWNER": f"{os.getuid()}:{os.getgid()}",
        "POSTGRES_PASSWORD": secrets.token_hex(16),
        KEY_FILE: MARK_KEYS,
    }
    lines = "".join(f"{name}={value}\n" for name, value in variables.items())
    return {
        "compose.yaml": (PROJECT / "compose.yaml").read_text(encoding="utf-8"),
        "dagster.yaml": (PROJECT / "dagster-postgresql.yaml").read_text(encoding="utf-8"),
        ".env": (PROJECT / "env").read_text(encoding="utf-8")
        + f"# Of compose.yaml. Keep a copy of {MARK_KEYS}.\n{lines}",
        ".gitignore": f"{IGNORED}/mlflow/\n/.env\n/{MARK_KEYS}\n",
        MARK_KEYS: f"{secrets.token_hex(32)}\n",
    }


def after(folder: Path, start: str, compose: bool, models: Sequence[str]) -> list[str]:
    """What to type next."""
    lines, of = [f"A project is in {folder.absolute()}. Type there:"], f"-l {models[0]} " if models else ""
    if models or start == "own":
        names = [f"{name}.yaml" for name in models] or ["recipe.yaml"]
        lines.append(f"  $EDITOR {' '.join(names)}   # what is marked CHANGE")
    if models:
        lines.append(f"  export PREFERENCE_TUNING_RECIPE={models[0]}.yaml   # the model that commands are about")
    if compose:
        lines += ["  docker compose up -d   # Dagster is on http://localhost:3000, MLflow on http://localhost:5000",
                  "  docker compose exec daemon dagster job launch -j preference_tuning"]  # fmt: skip
        return lines
    lines += ["  pt validate   # recipe, model, disk, source and gate, before anything runs",
              f"  dagster job launch {of}-j preference_tuning   # one iteration",
              f"  dagster job launch {of}-j canary_rollout   # its rollout, if the gate let it pass",
              "  pt status   # what came out",
              "  pt ui   # Dagster and MLflow on 127.0.0.1"]  # fmt: skip
    return lines


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
        f'[project]\nname = "{name}"\nversion = "0"\nrequires-python = ">=3.11,<3.14"\n'
        f'dependencies = ["preference-tuning[train]=={version("preference-tuning")}"]\n\n'
        '[tool.dagster]\nmodule_name = "jobs.definitions"\ncode_location_name = "preference_tuning"\n'
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
