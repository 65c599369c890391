"""What iterations add up to, in whatever state they are: no state and no damage is a crash."""

from pathlib import Path

import pytest

from assets.kpi import Kpi, read_kpi
from assets.records import Ending
from evals.gate import Verdict
from pipeline.core import layout
from pipeline.training.journal import TrainingJournal
from tests.assets.laid import Laid, recipe_of
from tests.pipeline.rollout.conftest import NAME

DAY_END = 1767657600.0  # of 2026-01-05, UTC


@pytest.fixture
def laid(tmp_path: Path) -> Laid:
    return Laid(tmp_path / "data")


def figures(laid: Laid, *overrides: str) -> Kpi:
    return read_kpi(laid.store, recipe_of(laid.store.root, *overrides))


def test_an_empty_root_has_no_figures(laid: Laid) -> None:
    assert figures(laid) == Kpi(model=NAME)


def test_a_promoted_candidate_is_the_gain_and_the_champion(laid: Laid) -> None:
    laid.world.now = DAY_END + 7200.0
    iteration = laid.roll_out()
    assert figures(laid).trace_to_promotion_s is None, "the embedded worlds' days are no dates"
    folded = figures(laid, "traces.source={kind: langfuse_export, uri: /exports}")
    (one,) = folded.iterations
    assert (one.iteration, one.state, one.version, one.verdict) == (iteration.id, "promoted", 1, "PASS")
    assert one.quality is not None and folded.champion_since is not None
    assert folded.gain == one.quality.difference.value > 0.1
    assert (folded.champion_version, folded.champion_iteration) == (1, iteration.id)
    assert folded.champion_quality == one.quality.candidate and folded.suite == "arithmetic"
    assert one.trace_to_promotion_s == folded.champion_since - DAY_END >= 7200.0
    assert (one.seen, one.admitted, one.kept, one.coverage) == (100, 80, 0.8, 0.75)


@pytest.mark.parametrize("ending", ["not trained", "stopped", "refused", "held"])
def test_each_ending_is_counted_with_its_reason(laid: Laid, ending: Ending) -> None:
    laid.end(laid.begin(), ending)
    folded = figures(laid)
    assert [(each.state, each.detail) for each in folded.iterations] == [(ending, "why it ended")]
    assert folded.ended == {ending: 1} and folded.gain is None


def test_a_rolled_back_candidate_gains_nothing(laid: Laid) -> None:
    laid.roll_out("a", 1)
    laid.roll_out("b", 2, until="rolled_back", data="newer")
    folded = figures(laid)
    assert [(each.number, each.state) for each in folded.iterations] == [(1, "promoted"), (2, "rolled back")]
    assert folded.iterations[0].quality and folded.gain == folded.iterations[0].quality.difference.value
    assert folded.champion_iteration == folded.iterations[0].iteration
    assert folded.iterations[1].detail, "the rollout says why"


def test_what_goes_on_names_its_stage_and_its_step(laid: Laid) -> None:
    iteration = laid.begin()
    laid.label(iteration)
    laid.plan(iteration)
    (one,) = figures(laid).iterations
    assert (one.state, one.stage, one.step) == ("in progress", "reward_model", None)
    assert one.costs == tuple(line for line in one.costs if line.name == "judges of labels")
    journal = TrainingJournal(laid.store.path(iteration.path(layout.JOURNAL)))
    journal.add("started", 0)
    journal.add("step", 7)
    (one,) = figures(laid).iterations
    assert one.step == 7
    (training,) = [line for line in one.costs if line.name == "training"]
    assert training.usd is None and training.why == "the training has not ended"


def test_one_that_a_newer_was_begun_over_is_unfinished(laid: Laid) -> None:
    laid.label(laid.begin("a"))
    laid.begin("b")
    left, newest = figures(laid).iterations
    assert (left.state, left.stage) == ("unfinished", "reward_model")
    assert newest.state == "in progress"


def test_the_base_model_is_as_good_as_it_was_last_measured(laid: Laid) -> None:
    laid.end(laid.until_verdict(verdict=Verdict.FAIL), "refused")
    folded = figures(laid)
    assert folded.iterations[0].quality is not None
    assert (folded.champion_version, folded.champion_quality) == (0, folded.iterations[0].quality.champion)


def test_any_record_may_be_gone_or_torn(laid: Laid) -> None:
    iteration = laid.roll_out()
    folder = laid.store.path(iteration.path())
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for left in (None, content[: len(content) // 2], b'{"iteration": 3}', b"\xff\xfe"):
            file.unlink() if left is None else file.write_bytes(left)
            (one,) = figures(laid).iterations
            assert one.state == "promoted", "the rollout's log knows"
            assert (left is None) == (not one.problems), (file.name, one.problems)
        file.write_bytes(content)
    assert not figures(laid).iterations[0].problems


def test_a_damaged_iteration_is_unreadable_and_no_other(laid: Laid) -> None:
    broken, fine = laid.begin("a"), laid.end(laid.begin("b"), "refused")
    laid.store.path(broken.path(layout.GOVERNED)).write_text("{")
    laid.store.path(layout.iteration("emptied")).mkdir()
    states = {each.iteration: each.state for each in figures(laid).iterations}
    assert states == {broken.id: "unreadable", fine.id: "refused", "emptied": "unreadable"}


def test_a_damaged_log_of_rollouts_is_a_problem(laid: Laid) -> None:
    laid.roll_out()
    laid.store.path(layout.rollout(NAME, "events", "000001.json")).unlink()
    folded = figures(laid)
    assert len(folded.problems) == 1 and folded.problems[0].startswith("rollout: ")
    assert [each.state for each in folded.iterations] == ["in rollout"], "as its own record says"


def test_iterations_of_another_model_are_another_deployments(laid: Laid) -> None:
    laid.end(laid.begin(), "refused")
    assert figures(laid, "base_model.name=other").iterations == ()
