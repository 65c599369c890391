"""The user's own reward function in a recipe: where it is looked for, and what is refused before it is imported."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from pipeline.pinning import differences
from pipeline.recipe import Recipe, load
from pipeline.recipe.custom import CustomReward, entry_point, function_of
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.custom import custom_id
from pipeline.section import settings

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"
FUNCTION = "def reward(prompt, completion, reference, metadata):\n    return 0.5\n"


def recipe_in(folder: Path, function: str = "mine.py:reward", source: str = FUNCTION, **changes: object) -> Path:
    tree = yaml.safe_load(EMBEDDED.read_text())
    tree["rewards"] |= {"custom": {"function": function, **changes}, "verified": {"correct": 1.0, "custom": 1.0}}
    (folder / "mine.py").write_text(source)
    (folder / "own.yaml").write_text(yaml.safe_dump(tree))
    return folder / "own.yaml"


def custom(recipe: Recipe) -> CustomReward:
    assert recipe.rewards.custom is not None
    return recipe.rewards.custom


def test_a_function_is_found_from_the_recipes_folder_on(tmp_path: Path) -> None:
    section = custom(load(recipe_in(tmp_path)))
    assert section.file == tmp_path / "mine.py" and section.name == "reward"
    assert section.digest == sha256(FUNCTION.encode()).hexdigest()
    absolute = custom(load(recipe_in(tmp_path, f"{tmp_path}/mine.py:reward")))
    assert function_of(absolute) == function_of(section)


def test_a_changed_function_is_another_recipe(tmp_path: Path) -> None:
    first = load(recipe_in(tmp_path))
    again = load(recipe_in(tmp_path))
    changed = load(recipe_in(tmp_path, source=FUNCTION.replace("0.5", "0.25")))
    assert again.digest() == first.digest() != changed.digest()
    assert [line.partition(":")[0] for line in differences(first, changed)] == ["rewards.custom.digest"]


def test_the_folder_of_the_recipe_decides_no_digest(tmp_path: Path) -> None:
    digests = set[str]()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        digests.add(load(recipe_in(tmp_path / name)).digest())
    assert len(digests) == 1


def test_a_recipe_without_a_function_says_nothing_of_one() -> None:
    assert "custom" not in str(settings(load(EMBEDDED)))


@pytest.mark.parametrize(
    ("function", "source", "message"),
    [
        ("other.py:reward", FUNCTION, r"other\.py cannot be read \(No such file.* from the recipe's folder on\.$"),
        (".:reward", FUNCTION, r"cannot be read \(Is a directory"),
        ("mine.py:rewards", FUNCTION, r"has no 'rewards' \(its functions: reward\)"),
        ("mine.py:", FUNCTION, r"has no ''"),
        ("mine.py:reward", "def reward(:", r"is not Python"),
        ("mine.py:reward", "x = '\0'", r"is not Python"),
        ("mine.py:reward", "def reward(prompt, completion): ...", r"takes prompt, completion\. Write it def reward\("),
        ("mine.py:reward", "def reward(): ...", r"takes nothing"),
        ("mine.py:reward", "def reward(a, b, c, d, e): ...", r"takes a, b, c, d, e"),
        ("mine.py:reward", "def reward(a, b, c, d, *, e): ...", r"takes a, b, c, d, e"),
        ("mine.py:reward", "async def reward(a, b, c, d): ...", r"is asynchronous"),
        ("no_such_entry_point", FUNCTION, r"no installed package has an entry point .*path/to/file"),
    ],
)
def test_a_function_that_cannot_be_one_is_refused(tmp_path: Path, function: str, source: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        load(recipe_in(tmp_path, function, source))
    assert "own.yaml does not resolve: rewards.custom.function" in str(refusal.value)


@pytest.mark.parametrize(
    "source",
    [
        "def reward(*all): ...",
        "def reward(a, b, c, d, e=1, *, f=2): ...",
        "reward = lambda a, b, c, d: 1",
        "from json import loads as reward",
        "if True:\n    def reward(a, b, c, d): return 1\n    reward = reward",
    ],
)
def test_a_function_may_be_bound_in_other_ways(tmp_path: Path, source: str) -> None:
    assert custom(load(recipe_in(tmp_path, source=source))).digest == sha256(source.encode()).hexdigest()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def reward(a, b, c, d, *, scale): ...", ""),
        ("def reward(a, b, c, d, scale): ...", ""),
        ("def reward(a, b, c, d, **more): ...", ""),
        ("def reward(a, b, c, d): ...", r"takes a, b, c, d, and is given the options scale\. Write it"),
        ("def reward(a, b, c, scale): ...", r"takes a, b, c, scale, and is given"),
    ],
)
def test_options_are_keywords_of_the_function(tmp_path: Path, source: str, message: str) -> None:
    if message:
        with pytest.raises(ValueError, match=message):
            load(recipe_in(tmp_path, source=source, options={"scale": 2}))
        return
    recipe = load(recipe_in(tmp_path, source=source, options={"scale": 2}))
    assert function_of(custom(recipe)).options == '{"scale": 2}'
    other = load(recipe_in(tmp_path, source=source, options={"scale": 3}))
    assert recipe.digest() != other.digest() and custom_id(recipe.rewards) != custom_id(other.rewards)


def test_a_recipe_without_options_says_nothing_of_them(tmp_path: Path) -> None:
    assert "options" not in settings(custom(load(recipe_in(tmp_path))))


def test_a_recipe_is_read_without_running_the_function(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    load(recipe_in(tmp_path, source=f"open({str(mark)!r}, 'w')\n{FUNCTION}"))
    assert not mark.exists()


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rewards\.custom\.digest is 0000, and mine\.py:reward is [0-9a-f]{64} now"):
        load(recipe_in(tmp_path, digest="0000"))
    pinned = sha256(FUNCTION.encode()).hexdigest()
    assert custom(load(recipe_in(tmp_path, digest=pinned))).digest == pinned


def test_a_weight_and_a_function_need_each_other() -> None:
    with pytest.raises(ValueError, match=r"no function is named\. Set rewards\.custom\.function"):
        Rewards(verified=Weights(custom=1.0))
    with pytest.raises(ValueError, match=r"no profile weighs it\. Give `custom` a weight"):
        Rewards(custom=CustomReward(function="mine.py:reward"))


def test_an_entry_point_is_its_distribution_and_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "graders-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: graders\nVersion: 1.2\n")
    (installed / "entry_points.txt").write_text("[preference_tuning.rewards]\nconcise = graders:concise\n")
    (tmp_path / "graders.py").write_text(FUNCTION.replace("reward", "concise"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    section = custom(load(recipe_in(tmp_path, "concise")))
    assert section.digest == "graders==1.2" and section.file is None
    assert entry_point("concise").value == "graders:concise"
    with pytest.raises(ValueError, match=r"digest is graders==1\.1, and concise is graders==1\.2 now"):
        load(recipe_in(tmp_path, "concise", digest="graders==1.1"))
