"""An iteration keeps the recipe that it was begun with; what runs it is as the deployment says now."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.recipe import Recipe, load
from pipeline.recipe.pinning import differences, pin, pinned, refuse_to_mix
from pipeline.recipe.section import joined

RECIPES = Path(__file__).parents[3] / "jobs" / "recipes"
EMBEDDED = RECIPES / "embedded.yaml"
ITERATION = identify(0, "arithmetic", ModelRef(uri="m", digest="m"), DatasetRef(uri="d", rows=1, digest="d"), "r")
DECIDING = [
    "training.seed=3",
    "rewards.verified={correct: 1, format: 0.1, length: 0.07}",
    "selection.method=dpo",
    "evaluation.alpha=0.2",
]
RUNNING = [
    "compute.workers=7", "rollout.accept_hold=abc", "rewards.verifier.workers=5", "training.timeout_s=9",
    "data_root=/elsewhere", "traces.governed_days=3",
]  # fmt: skip
JUDGED = ["rewards.judge={model: judge, digest: d, concurrency: 3}"]


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_is_pinned_once_and_whole(path: Path, tmp_path: Path) -> None:
    store, recipe = Store(tmp_path), load(path)
    assert recipe.name == path.stem
    pin(store, ITERATION, recipe)
    pin(store, ITERATION, load(path, ["training.seed=99"]))
    begun_with = pinned(store, ITERATION)
    assert begun_with.digest() == recipe.digest()
    assert joined(begun_with, recipe) == recipe
    assert differences(begun_with, recipe) == []


@pytest.mark.parametrize("override", DECIDING)
def test_what_decides_is_of_then_and_is_refused_now(override: str) -> None:
    then, now = load(EMBEDDED), load(EMBEDDED, [override])
    assert joined(then, now) == then
    field = override.split("=")[0]
    assert [name.split(":")[0].startswith(field) for name in differences(then, now)] == [True]
    with pytest.raises(
        ValueError, match=rf"begun with another recipe \({field}.*: .*begin an iteration under the recipe"
    ):
        refuse_to_mix(then, now, ITERATION)


@pytest.mark.parametrize("override", RUNNING)
def test_what_only_runs_it_is_of_now(override: str) -> None:
    then, now = load(EMBEDDED), load(EMBEDDED, [override])
    assert joined(then, now) == now
    refuse_to_mix(then, now, ITERATION)


@pytest.mark.slow
@given(st.sets(st.sampled_from([*DECIDING, *RUNNING])), st.sets(st.sampled_from([*DECIDING, *RUNNING])))
def test_the_digest_and_the_differences_agree(first: set[str], second: set[str]) -> None:
    then, now = load(EMBEDDED, sorted(first)), load(EMBEDDED, sorted(second))
    assert (differences(then, now) == []) == (then.digest() == now.digest())
    both = joined(then, now)
    assert both.digest() == then.digest()

    assert (both.compute, both.rollout, both.data_root) == (now.compute, now.rollout, now.data_root)


def test_a_section_that_only_one_recipe_has_is_kept_whole() -> None:
    plain, judged = load(EMBEDDED), load(EMBEDDED, JUDGED)
    assert joined(judged, plain).rewards.judge == judged.rewards.judge
    assert joined(plain, judged).rewards.judge is None
    more = load(EMBEDDED, [*JUDGED, "rewards.judge.concurrency=9"])
    assert joined(judged, more) == more


def test_an_iteration_without_its_recipe_says_how_it_gets_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no recipe\.json.*Launch the whole job"):
        pinned(Store(tmp_path), ITERATION)


def test_the_pinned_recipe_does_not_say_where_it_lies(tmp_path: Path) -> None:
    recipe = load(EMBEDDED, [f"data_root={tmp_path}"])
    pin(Store(tmp_path), ITERATION, recipe)
    assert str(tmp_path) not in (tmp_path / "iterations" / ITERATION.id / "recipe.json").read_text()
    assert isinstance(pinned(Store(tmp_path), ITERATION), Recipe)
