"""`pt` as it is installed: every word answers for itself, and none of the others is imported for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.pt import WORDS, main
from tests.loop import ROOT
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

PT = Path(sys.executable).with_name("pt")


def pt(*words: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **variables}
    return subprocess.run([PT, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_help_names_every_word_and_imports_nothing_heavy() -> None:
    code = "import sys, jobs.pt\ntry: jobs.pt.main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    text, _, modules = done.stdout.rpartition("\n[")
    assert all(f"\n    {word} " in text or f"\n    {word}\n" in text for word in WORDS)
    assert not {"'dagster'", "'mlflow'", "'torch'", "'pydantic'", "'yaml'", "'assets'"} & set(modules.split(", "))


@pytest.mark.parametrize("word", WORDS)
def test_each_word_has_a_help_of_its_own(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([word, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: pt {word}")


@pytest.mark.parametrize("word", one_and_variants(["evals", "clean", "recipe"]))
def test_python_m_is_the_same_command(word: str) -> None:
    module = WORDS[word].module.removesuffix(".__main__")
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT, env={**os.environ, "COLUMNS": "120"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == pt(word, "--help").stdout


def test_an_unknown_word_is_refused_with_the_words() -> None:
    done = pt("promote")
    assert done.returncode == 2
    assert "rollout" in done.stderr and done.stdout == ""
    assert pt().returncode == 2
    assert pt("--version").stdout.strip()


def test_a_pipe_that_is_closed_ends_it_quietly() -> None:
    command = f"set -o pipefail; {PT} recipe explain | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 141 and done.stderr == "" and done.stdout.startswith("name: text")


@pytest.mark.variant
def test_results_for_a_machine_are_one_json_object(tmp_path: Path) -> None:
    root = {"PREFERENCE_TUNING_OVERRIDES": f"data_root={tmp_path}/data"}
    assert json.loads(pt("governance", "blocks", "--json", **root).stdout) == {"blocks": []}
    verified = json.loads(pt("governance", "verify", "--json", **root).stdout)
    assert verified["intact"] and verified["entries"] == 0
    assert json.loads(pt("reviews", "status", "--json", **root).stdout) == {"weeks": {}, "problems": []}
    assert json.loads(pt("rollout", "status", "--json", **root).stdout)["phase"]
    missing = pt("summary", "--json", **root)
    assert missing.returncode == 2 and "There is no iteration yet" in missing.stderr and not missing.stdout


def test_the_recipe_is_explained_field_by_field() -> None:
    field, section = pt("recipe", "explain", "training.seed"), pt("recipe", "explain", "rollout", "--json")
    assert field.stdout.startswith("training.seed: integer; default 1\n    Seed of")
    assert all(row["field"].startswith("rollout") for row in json.loads(section.stdout))
    wrong = pt("recipe", "explain", "training.sede")
    assert wrong.returncode == 2 and "Did you mean training.seed?" in wrong.stderr
    assert json.loads(pt("recipe", "show").stdout)["recipe"]["name"] == "embedded"
    assert json.loads(pt("recipe", "schema").stdout) == json.loads(
        (ROOT / "jobs" / "recipes" / "recipe.schema.json").read_text()
    )
