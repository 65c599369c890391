"""Marks on fields: what they leave out of an identity, and what stays."""

from typing import Annotated

import pytest
from pydantic import ValidationError

from pipeline.recipe import Recipe, Training
from pipeline.recipe.section import EACH, Length, Observer, Operational, Section, fields, joined, settings


class Inner(Section):
    workers: Annotated[int, Operational] = 1
    rate: float = 0.5


class Other(Section):
    place: Annotated[str, Operational] = "here"
    rate: float = 0.5


class Listed(Section):
    each: tuple[Inner | Other, ...] = ()


class Outer(Section):
    inner: Inner = Inner()
    maybe: Inner | Other | None = None
    watch: Annotated[Inner, Observer] = Inner()
    seed: int = 1


def test_marked_fields_are_named_where_they_stand() -> None:
    assert fields(Outer, Operational) == {
        "inner": {"workers": True},
        "maybe": {"workers": True, "place": True},
        "watch": {"workers": True},
    }
    assert fields(Outer, Operational, Observer)["watch"] is True
    assert settings(Outer(maybe=Other()), Operational, Observer) == {
        "inner": {"rate": 0.5},
        "maybe": {"rate": 0.5},
        "seed": 1,
    }


def test_joined_takes_what_decides_from_the_first() -> None:
    first, now = Outer(seed=3, inner=Inner(workers=1, rate=0.1)), Outer(seed=4, inner=Inner(workers=9, rate=0.9))
    assert joined(first, now) == Outer(seed=3, inner=Inner(workers=9, rate=0.1))
    assert joined(Outer(maybe=Other(place="a")), Outer()).maybe == Other(place="a"), "a section that is not there now"


def test_joined_takes_marked_fields_of_a_list_from_the_second() -> None:
    first, now = (Listed(each=(Inner(workers=n, rate=n / 10), Other(place=str(n)))) for n in (1, 2))
    assert joined(first, now) == Listed(each=(Inner(workers=2, rate=0.1), Other(place="2")))
    assert joined(first, Listed(each=(Inner(workers=7),))) == first, "another list: nothing to take from it"
    assert settings(first, Operational)["each"] == [{"rate": 0.1}, {"rate": 0.5}]


def test_a_marked_field_is_validated_as_any_other() -> None:
    with pytest.raises(ValidationError):
        Inner.model_validate({"workers": "many"})


def test_recipe_fields_without_effect_are_meant_to_be() -> None:
    """A field that decides the result and carries a mark would let two iterations share an id: read this list."""
    whole = (
        "name",
        "data_root",
        "base_model",
        "rollout",
        "compute",
        "accept_demo_suite",
        "answers_in_mlflow",
        "automation",
        "key_prefix",
    )
    serving = dict.fromkeys(("batch_size", "in_flight", "memory_share", "start_timeout_s", "timeout_s"), True)
    assert fields(Recipe, Operational) == {
        **dict.fromkeys(whole, True),
        "traces": {
            **dict.fromkeys(("attribution", "min_admitted_share", "lake", "retention"), True),
            "source": {"code": True},  # its digest decides
        },
        "rewards": {
            "verifier": {"workers": True},
            "judge": {"concurrency": True},
            "custom": {"workers": True, "code": True},
            "reward_model": {"timeout_s": True},
            "review_rows": True,
        },
        "samples": {"serving": serving},
        "evaluation": {
            "suites": {EACH: {"path": True, "custom": {"code": True}}},
            "serving": serving,
            "judge": {"concurrency": True},
        },
        "training": {"checkpoints": True, "timeout_s": True, "grace_s": True},
    }
    assert fields(Training, Observer) == {
        **dict.fromkeys(("validation", "sentinel"), True),
        **{name: {"kl_stop": True} for name in ("grpo", "dpo", "kto", "sft")},
    }
    assert fields(Training, Length) == {
        **{name: {"steps": True, "learning_rate": True} for name in ("grpo", "dpo", "kto", "sft")},
        "seed": True,
    }
