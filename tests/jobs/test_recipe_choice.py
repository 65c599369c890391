"""The recipe that a command works on: said in the same words to each of them."""

import json
import shlex
from pathlib import Path

import pytest

from assets.environment import EMBEDDED
from jobs import cluster, recipe, validate
from jobs.recipe_choice import recipe_choice, typed
from pipeline.recipe import split_overrides

READERS = {
    "validate": (validate.parser, []),
    "recipe show": (recipe.parser, ["show"]),
    **{f"k8s {word}": (cluster.parser, [word]) for word in ("lint", "render", "estimate")},
}


@pytest.mark.parametrize("command", READERS)
def test_each_command_takes_the_same_words(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parser, words = READERS[command]
    monkeypatch.delenv("PREFERENCE_TUNING_RECIPE", raising=False)
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", "training.seed=2 name='a b'")
    said = ["training.seed=2", "name=a b"]

    def chosen(*typed: str) -> tuple[str, list[str]]:
        return recipe_choice(parser().parse_args([*words, *typed]))

    assert chosen() == (str(EMBEDDED), said)
    typed = "--override", "training.seed=3", "compute.nodes=2"
    assert chosen("my.yaml", *typed) == ("my.yaml", [*said, *typed[1:]])
    assert chosen("--recipe", "my.yaml", *typed) == ("my.yaml", [*said, *typed[1:]])
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", "/other.yaml")
    assert chosen() == ("/other.yaml", said)


def test_the_recipe_that_is_shown_is_the_one_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    own = str(Path(EMBEDDED).with_name("own.yaml"))
    assert recipe.main(["show", own, "--override", "training.seed=3"]) == 0
    shown = json.loads(capsys.readouterr().out)["recipe"]
    assert (shown["name"], shown["training"]["seed"]) == ("own", 3)
    assert recipe.main(["show", own, "--override", "training.sede=3"]) == 2
    assert "training.sede: there is no such field" in capsys.readouterr().err


def test_a_command_is_pasted_with_recipe_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RECIPE", "OVERRIDES"):
        monkeypatch.delenv(f"PREFERENCE_TUNING_{name}", raising=False)
    assert typed("pt status") == "pt status"
    overrides = ["base_model.uri=/models/my model", "traces.source={kind: otel, uri: it's}"]
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", "my own.yaml")
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join(overrides))
    recipe_word, words, *command = shlex.split(typed("pt status"))
    assert (recipe_word, command) == ("PREFERENCE_TUNING_RECIPE=my own.yaml", ["pt", "status"])
    assert split_overrides(words.partition("=")[2]) == overrides
    (tmp_path / "recipe.yaml").touch()
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", "recipe.yaml")
    assert typed("pt status").startswith("PREFERENCE_TUNING_OVERRIDES="), "what a command takes by itself is not named"
