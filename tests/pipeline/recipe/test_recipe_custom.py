"""Code of the user's own in a recipe: where it is looked for, what stands for its content, and its import."""

import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.recipe import Recipe, load
from pipeline.recipe.custom import CustomCode, create, digest_of, load_code
from pipeline.recipe.pinning import differences
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.custom import custom_id

EMBEDDED = Path(__file__).parents[3] / "jobs" / "recipes" / "embedded.yaml"
FUNCTION = "def reward(prompt, completion, reference, metadata):\n    return 0.5\n"
PLACES: dict[str, dict[str, Any]] = {
    "traces.source": {"kind": "custom", "uri": "/logs"},
    "rewards.custom": {},
    "evaluation.suites.custom": {},
}


def recipe_in(
    folder: Path, code: str = "mine.py:reward", source: str = FUNCTION, at: str = "rewards.custom", **changes: Any
) -> Path:
    tree = yaml.safe_load(EMBEDDED.read_text())
    section, name, *below = at.split(".")
    value = {"code": code, **PLACES[at], **changes}
    tree.setdefault(section, {})[name] = [{"kind": "items", "name": "own", "custom": value}] if below else value
    if at == "rewards.custom":
        tree["rewards"]["verified"] = {"correct": 1.0, "custom": 1.0}
    (folder / "mine.py").write_text(source)
    (folder / "own.yaml").write_text(yaml.safe_dump(tree))
    return folder / "own.yaml"


def at(place: str, recipe: Recipe) -> CustomCode:
    section, name, *below = place.split(".")
    value = getattr(getattr(recipe, section), name)
    return value[0].custom if below else value


def custom(recipe: Recipe) -> CustomCode:
    return at("rewards.custom", recipe)


@pytest.mark.parametrize("place", PLACES)
def test_each_place_keeps_the_code_and_its_digest(tmp_path: Path, place: str) -> None:
    section = at(place, load(recipe_in(tmp_path, at=place)))
    assert section.code == f"{tmp_path}/mine.py:reward"
    assert section.digest == f"reward {sha256(FUNCTION.encode()).hexdigest()}"
    with pytest.raises(ValueError, match=rf"own\.yaml does not resolve: {place}\.code: .*other\.py cannot be read"):
        load(recipe_in(tmp_path, "other.py:reward", at=place))


def test_changed_code_is_another_recipe(tmp_path: Path) -> None:
    first, again = load(recipe_in(tmp_path)), load(recipe_in(tmp_path, f"{tmp_path}/mine.py:reward"))
    changed = load(recipe_in(tmp_path, source=FUNCTION.replace("0.5", "0.25")))
    renamed = load(recipe_in(tmp_path, "mine.py:other", FUNCTION + "other = reward\n"))
    optioned = load(recipe_in(tmp_path, source=FUNCTION, options={"scale": 2}))
    assert again.digest() == first.digest() and custom_id(again.rewards) == custom_id(first.rewards)
    recipes = (first, changed, renamed, optioned)
    assert len({each.digest() for each in recipes}) == len({custom_id(each.rewards) for each in recipes}) == 4
    assert [line.partition(":")[0] for line in differences(first, changed)] == ["rewards.custom.digest"]


@pytest.mark.slow
def test_a_package_that_is_not_there_is_refused(tmp_path: Path) -> None:
    missing = r"rewards\.custom\.code: no installed package has the module no_such_module\. Install one"
    with pytest.raises(ValueError, match=missing):
        load(recipe_in(tmp_path, "no_such_module:reward"))


@pytest.mark.parametrize("code", ["mine.py", "mine.py:", ":reward", "mine.py:a b"])
def test_code_has_a_place_and_a_name(tmp_path: Path, code: str) -> None:
    with pytest.raises(ValueError, match=r"rewards\.custom\.code"):
        load(recipe_in(tmp_path, code))


def test_a_recipe_is_read_without_running_the_code(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    load(recipe_in(tmp_path, source=f"open({str(mark)!r}, 'w')\n{FUNCTION}"))
    assert not mark.exists()


def test_other_code_than_was_agreed_on_is_refused(tmp_path: Path) -> None:
    pinned = digest_of(custom(load(recipe_in(tmp_path))).code)
    assert custom(load(recipe_in(tmp_path, digest=pinned))).digest == pinned
    with pytest.raises(ValueError, match=r"mine\.py:reward has the digest 'reward [0-9a-f]{64}' now, and 'x' was"):
        load(recipe_in(tmp_path, digest="x"))
    (tmp_path / "mine.py").write_text(FUNCTION + "\n")
    with pytest.raises(ValueError, match=r"begin a new iteration"):
        load_code(f"{tmp_path}/mine.py:reward", pinned)


def test_a_weight_needs_a_function() -> None:
    with pytest.raises(ValueError, match=r"no function is named\. Set rewards\.custom\.code"):
        Rewards(verified=Weights(custom=1.0))


@pytest.mark.slow
def test_an_installed_package_is_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "graders-1.2.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: graders\nVersion: 1.2\n")
    (record / "top_level.txt").write_text("acme_graders\n")
    (tmp_path / "acme_graders").mkdir()
    (tmp_path / "acme_graders" / "words.py").write_text(FUNCTION)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    section = custom(load(recipe_in(tmp_path, "acme_graders.words:reward")))
    assert section.digest == "acme_graders.words:reward graders==1.2"
    assert load_code(section.code, section.digest)(1, 2, 3, 4) == 0.5
    with pytest.raises(ValueError, match=r"graders==1\.1' was agreed on"):
        load(recipe_in(tmp_path, section.code, digest="acme_graders.words:reward graders==1.1"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package\nmake = 1", r"mine\.py:make cannot be imported \(ModuleNotFoundError: No .*Mend"),
        ("raise SystemExit(3)\nmake = 1", r"cannot be imported \(SystemExit: 3\)"),
        ("made = 1", r"cannot be imported \(AttributeError: .* has no attribute 'make'"),
        ("def make(:", r"cannot be imported \(SyntaxError: .*mine\.py"),
        ("make = 3", r"mine\.py:make cannot be called \(3 is not a callable object\)"),
        ("def make(first): ...", r"cannot be called \(got an unexpected keyword argument 'scale'\)\. Change it"),
        ("def make(first, scale): raise ValueError('Give a desk.')", r"^Give a desk\.$"),
        ("def make(first, scale): return first * scale", ""),
        ("from dataclasses import dataclass\n@dataclass\nclass make:\n    first: int\n    scale: 'int'", ""),
    ],
)
def test_code_is_called_with_its_options(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(source)
    section = CustomCode(code=f"{tmp_path}/mine.py:make", options={"scale": 2})
    if not message:
        made = create(section, 3)
        assert made == 6 or (made.first, made.scale) == (3, 2)
        return
    with pytest.raises(ValueError, match=message):
        create(section, 3)
