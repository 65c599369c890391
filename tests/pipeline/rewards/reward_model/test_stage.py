"""The stage on planted thumbs: a real model in a real process, measured on users that it never saw."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core import layout
from pipeline.core.storage import Store, digest_dir, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.rewards.reward_model.measures import objections
from pipeline.rewards.reward_model.stage import NOT_ASKED, train_reward_model
from tests.contexts import context_of
from tests.pipeline.rewards.reward_model.conftest import (
    LONGER,
    POLITE_ROWS,
    POLITE_SETTINGS,
    Planted,
    iteration_of,
    likes_long,
    likes_polite,
    rated,
    trained,
    work,
)

ROOT = Path(__file__).parents[4]
KEPT = {layout.REWARD_MODEL, layout.REWARD_MODEL_FOLDER, layout.REWARD_MODEL_LOCK}


def files_of(store: Store) -> set[str]:
    return {path.name for path in store.path(iteration_of(store).path()).iterdir()}


def no_rows() -> tuple[list, dict]:
    raise AssertionError("rows are not read where no reward model is wanted")


def test_without_the_section_nothing_is_done(store: Store) -> None:
    report = train_reward_model(context_of(store, iteration_of(store)), no_rows)
    assert (report.model, report.reason, report.admitted) == (None, NOT_ASKED, False)
    assert files_of(store) == {layout.REWARD_MODEL}


def test_thumbs_that_do_not_suffice_are_a_result(store: Store) -> None:
    report = trained(store, rated(5, 5, likes_polite))
    assert (report.model, report.admitted) == (None, False)
    assert report.reason == "not trained: 5 thumbs of 5 users: at least 40 of 10 are needed"
    assert trained(store, POLITE_ROWS) == report, "the record stands"


@pytest.mark.slow
def test_a_planted_taste_is_found_and_no_row_is_kept(polite: Planted) -> None:
    report, folder = polite.report, polite.store.path(iteration_of(polite.store).path())
    assert report.admitted, report.reasons
    assert (report.auc.value or 0) > 0.8, "nine thumbs in ten are right: no scorer of them has more than .9"
    assert report.base == model_ref(MODEL_DIR)
    assert report.model is not None and digest_dir(Path(report.model.uri)) == report.model.digest
    assert files_of(polite.store) == KEPT
    words = [b"user-0001", b"How many apples", str(polite.store.root).encode()]
    files = [path for path in (folder / layout.REWARD_MODEL_FOLDER).rglob("*") if path.is_file()]
    assert [(path.name, word) for path in files for word in words if word in path.read_bytes()] == []


@pytest.mark.variant
@pytest.mark.slow
def test_a_model_of_length_fails_its_probes(store: Store) -> None:
    report = trained(store, rated(400, 50, likes_long, fillers=(0, 1, 2, 3)), probes=(LONGER,))
    assert report.auc.low is not None
    assert report.auc.low > 0.6, "by its AUC it is a good one"
    assert report.failed_probes == ("longer",)
    assert not report.admitted
    (longer,) = report.probes
    assert longer.ordered_right.high is not None
    assert longer.ordered_right.high < 0.9, "longer is better, it has learnt"


KILLED = """
import os, signal
from dataclasses import replace
from tests.pipeline.rewards.reward_model.conftest import *
def log(line):
    if "epoch 1" in line:
        os.kill(os.getpid(), signal.SIGKILL)
context = replace(work(Store({root!r}, KEYS), **POLITE_SETTINGS), log=log)
train_reward_model(context, lambda: (POLITE_ROWS, {{}}))
"""


@pytest.mark.variant
@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_killed_and_run_again_it_has_the_same_bits(store: Store, polite: Planted) -> None:
    code = KILLED.format(root=str(store.root))
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not files_of(store) & {layout.REWARD_MODEL, layout.REWARD_MODEL_FOLDER}
    again = trained(store, POLITE_ROWS, **POLITE_SETTINGS)
    assert again.model is not None
    assert polite.report.model is not None
    assert again.model.digest == polite.report.model.digest
    figures = [each.model_dump(exclude={"model", "seconds"}) for each in (again, polite.report)]
    assert figures[0] == figures[1]
    assert files_of(store) >= KEPT


@pytest.mark.slow
def test_the_rule_says_what_is_missing(polite: Planted) -> None:
    settings, report = work(polite.store).recipe.rewards.reward_model, polite.report
    assert settings is not None
    strict = settings.model_copy(update={"min_thumbs": 1000, "min_users": 100, "min_auc": 0.99})
    words = objections(strict, report.counts, report.auc, ())
    assert [word.split(":")[-1].strip() for word in words[:2]] == ["600 are missing", "50 are missing"]
    assert "its lower bound has to reach 0.99" in words[2]
    assert words[3].startswith("no probe was asked")
    flipped = report.auc.model_copy(update={"value": 0.2, "low": 0.1, "high": 0.3})
    assert "the wrong way round" in " ".join(objections(settings, report.counts, flipped, report.probes))
