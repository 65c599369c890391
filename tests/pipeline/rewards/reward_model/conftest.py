"""Planted thumbs: what users like is known, so a reward model has to find it, or to admit that it did not."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import DatasetRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Rewards
from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.records import RewardModelReport, Thumb
from pipeline.rewards.reward_model.stage import train_reward_model
from pipeline.traces.context import IterationContext
from tests.contexts import KEYS, context_of
from tests.fork_server import ForkServer
from tests.loop import forked

RUDE, POLITE = "You fool! ", "Thanks. "
FILLER = " Ada has apples and Ben buys pears."


Taste = Callable[[bool, str, random.Random], bool]
"""Whether a user likes an answer: is it polite, its text, a source of chance."""


def likes_polite(polite: bool, text: str, chance: random.Random) -> bool:
    return polite


def likes_long(polite: bool, text: str, chance: random.Random) -> bool:
    return chance.random() < 0.05 + 0.3 * text.count(FILLER)


def rated(
    n: int, users: int, taste: Taste, flipped: float = 0.0, seed: int = 0, fillers: Sequence[int] = (2, 0)
) -> list[Thumb]:
    """Thumbs on answers to sums, polite or rude and longer or shorter by chance; a prompt is asked twice."""
    chance = random.Random(seed)
    rows: list[Thumb] = []
    for number in range(n):
        a, b = 10 + number // 2 % 80, 10 + number // 160 % 80
        polite, more = chance.random() < 0.5, fillers[int(chance.random() * len(fillers))]
        text = f"{POLITE if polite else RUDE}{a}+{b}={a + b}." + FILLER * more
        up = taste(polite, text, chance) != (chance.random() < flipped)
        prompt = json.dumps([{"role": "user", "content": f"Ben has 7 pears. How many apples is {a} and {b}?"}])
        user = f"user-{number % users:04d}"
        rows.append(Thumb(f"t{number:05d}", "o", user, prompt, text, 0.75 if up else 0.25))
    return rows


def iteration_of(store: Store) -> Iteration:
    return identify(0, "tiny", model_ref(MODEL_DIR), DatasetRef(uri="d", rows=1, digest="d"), "r")


def work(store: Store, **settings: Any) -> IterationContext:
    section = RewardModelSettings.model_validate({"min_thumbs": 300, "min_users": 30, **settings})
    return context_of(store, iteration_of(store), rewards=Rewards(reward_model=section))


def trained(store: Store, rows: list[Thumb], **settings: Any) -> RewardModelReport:
    """By the stage, in a process of its own."""
    return train_reward_model(work(store, **settings), lambda: (rows, {}))


INSULT = {"kind": "append", "name": "insult", "text": "You fool!"}
LONGER = {"kind": "lengthen", "name": "longer", "text": FILLER.strip()}


class Planted(NamedTuple):
    """A reward model of users with a taste."""

    store: Store
    report: RewardModelReport


POLITE_ROWS = rated(400, 50, likes_polite, 0.1)
POLITE_SETTINGS = {"probes": (INSULT,), "min_probe": 0.7, "epochs": 2}


@pytest.fixture(scope="session")
def polite(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Planted:
    """Users like polite answers, and press the wrong thumb one time in ten."""
    store = Store(tmp_path_factory.mktemp("polite") / "data", KEYS)
    with forked(fork_server):
        return Planted(store, trained(store, POLITE_ROWS, **POLITE_SETTINGS))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "data", KEYS)
