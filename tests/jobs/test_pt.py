"""`pt` as it is installed: every word answers for itself, and none of the others is imported for that."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.pt import WORDS, main
from tests.loop import ROOT

pytestmark = pytest.mark.slow

PT = Path(sys.executable).with_name("pt")


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


def test_an_unknown_word_is_refused_with_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    for words, code in ((["promote"], 2), ([], 2), (["--version"], 0)):
        with pytest.raises(SystemExit) as ended:
            sys.exit(main(words))
        said = capsys.readouterr()
        assert ended.value.code == code
        assert words != ["promote"] or ("rollout" in said.err and said.out == "")
        assert code or said.out.strip()


def test_a_pipe_that_is_closed_ends_it_quietly() -> None:
    command = f"set -o pipefail; {PT} recipe schema | head -1"  # more than a pipe holds
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 141 and done.stderr == "" and done.stdout == "{\n"


def test_the_recipe_is_explained_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(["recipe", *words]) == 0
        return capsys.readouterr().out

    assert said("explain", "training.seed").startswith("training.seed: integer; default 1\n    Seed of")
    assert all(line.startswith(("rollout", "    ")) for line in said("explain", "rollout").splitlines())
    assert json.loads(said("show"))["recipe"]["name"] == "embedded"
    assert main(["recipe", "explain", "training.sede"]) == 2
    assert "Did you mean training.seed?" in capsys.readouterr().err
