"""The simulator against closed forms, against what was measured, and against itself under other luck."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.simulate import Profile, journal, plan_interval, run, schedule
from pipeline.recipe import Checkpoints
from pipeline.training.goodput import account, interruptions
from pipeline.training.result import CAUSES
from tests.k8s.interruptions import evenly

profiles = st.builds(
    Profile,
    work_s=st.floats(1, 2000),
    step_s=st.floats(1, 100),
    save_s=st.floats(0.1, 60),
    start_s=st.floats(0, 100),
    wait_s=st.floats(0, 500),
    end_s=st.floats(0, 50),
    notice_s=st.sampled_from([0.0, 30.0, 120.0]),
    grace_s=st.floats(1, 200),
    sigterm_saves=st.sampled_from([0.0, 0.5, 1.0]),
    checkpoints=st.builds(
        Checkpoints, every_steps=st.integers(1, 20), interruption_every_s=st.none() | st.floats(10, 5000)
    ),
)
moments = st.lists(st.floats(0, 4000), max_size=8)


def test_undisturbed_it_is_work_and_saves_and_its_two_ends() -> None:
    profile = Profile(work_s=1000, step_s=10, save_s=4, start_s=60, end_s=30, checkpoints=Checkpoints(every_steps=10))
    result = run(profile, ())
    assert result.productive_s == 1000
    assert result.badput_s == {"start": 60, "save": 36, "validation": 0, "lost": 0, "waiting": 0, "end": 30}
    assert result.share == 1000 / 1126


@pytest.mark.parametrize(("count", "aim"), [(3, 0.93), (6, 0.88)])
def test_five_hours_with_notice_reach_the_goodput_aimed_at(count: int, aim: float) -> None:
    profile = Profile()
    result = run(profile, evenly(profile, count))
    assert aim <= result.share < aim + 0.02
    assert result.badput_s["start"] + result.badput_s["waiting"] == 60 + 300 * count
    assert result.badput_s["lost"] == 0
    assert sum(result.badput_s.values()) + result.productive_s == result.total_s


@pytest.mark.parametrize(("count", "measured"), [(0, 0.71), (1, 0.63), (3, 0.50), (6, 0.38)])
def test_it_tells_what_the_embedded_training_was_measured_to_do(count: int, measured: float) -> None:
    """docs/training.md: 32 steps in 77 s with 12 s of held-out answers (at its end here), starts of 10 s."""
    profile = Profile(work_s=54.7, step_s=54.7 / 32, save_s=0.09, start_s=10, wait_s=0, end_s=12)
    assert run(profile, evenly(profile, count)).share == pytest.approx(measured, abs=0.025)


@given(st.floats(0, 18_000))
def test_interruption_without_notice_costs_a_bounded_time(at: float) -> None:
    profile = Profile(notice_s=0)
    interval_s = 10 * profile.step_s
    cost = run(profile, [at]).total_s - run(profile, ()).total_s
    restart_s = profile.wait_s + profile.start_s
    assert (profile.wait_s if at > 0 else 0) <= cost <= interval_s + profile.save_s + restart_s


def test_notice_saves_the_step_under_way() -> None:
    profile = Profile(work_s=1000, step_s=10, save_s=2, start_s=60, checkpoints=Checkpoints(every_steps=20))
    at = 60 + 55.0  # in the sixth step
    value, untold = journal(profile, [at]), journal(profile.model_copy(update={"notice_s": 0.0}), [at])
    assert [event.kind for event in value][:10] == [
        "started", "ready", *["step"] * 5, "stopping", "step", "saved"
    ]  # fmt: skip
    assert [(each.cause, each.step, each.lost_steps) for each in interruptions(value)] == [("SIGTERM", 6, 0)]
    assert [(each.cause, each.step, each.lost_steps) for each in interruptions(untold)] == [("killed", 5, 5)]


@pytest.mark.parametrize(
    "changed",
    [
        {"sigterm_saves": 0.0},
        {"step_s": 150.0},  # longer than the grace: it leaves at once
        {"grace_s": 9.0},  # shorter than the step
        {"notice_s": 2.0},  # the node goes before the step ends
        {"save_s": 95.0},
    ],
)
def test_a_notice_is_of_no_use_where_there_is_no_time_to_save(changed: dict[str, float]) -> None:
    profile = Profile(work_s=2000, step_s=10, save_s=2, checkpoints=Checkpoints(every_steps=8)).model_copy(
        update=changed
    )
    at = profile.start_s + 4.2 * profile.step_s
    (result,) = interruptions(journal(profile, [at]))
    assert (result.cause, result.step, result.lost_steps) == ("SIGTERM", 4, 4)


@pytest.mark.parametrize(
    ("step_s", "save_s", "step", "lost_steps"),
    [
        (10.0, 4.0, 3, 0),
        (70.0, 20.0, 3, 1),  # the step ends in time, its save does not
        (97.0, 4.0, 2, 2),  # they never would: it leaves at once
    ],
)
def test_who_is_told_during_a_save_finishes_it_and_the_next_step(
    step_s: float, save_s: float, step: int, lost_steps: int
) -> None:
    """With a grace of 100 s, of which 90 may be used."""
    every_other = Checkpoints(every_steps=2)
    profile = Profile(work_s=20 * step_s, step_s=step_s, save_s=save_s, start_s=0, checkpoints=every_other)
    (result,) = interruptions(journal(profile, [2 * step_s + 2.0]))
    assert (result.step, result.lost_steps) == (step, lost_steps)


def test_interval_follows_the_trainers_rule() -> None:
    profile = Profile(work_s=3000, step_s=10, save_s=2, checkpoints=Checkpoints(interruption_every_s=2500))
    saved = [event.step for event in journal(profile, ()) if event.kind == "saved"]
    assert saved[:4] == [10, 20, 30, 40], "sqrt(2 x 2 x 2,500) = 100 s, ten steps"
    rarely = profile.model_copy(update={"checkpoints": Checkpoints(interruption_every_s=10_000)})
    assert [event.step for event in journal(rarely, ()) if event.kind == "saved"][:3] == [10, 30, 50]


def test_nobody_has_a_checkpoint_before_the_loop_begins() -> None:
    events = journal(Profile(), [30.0])
    assert [event.kind for event in events][:3] == ["started", "stopping", "started"]
    assert account(events).badput_s["start"] == 30 + 60


@given(profiles, moments, st.integers(0, 9))
@settings(max_examples=25)
def test_simulation_ends_and_accounts_for_every_second(profile: Profile, at: list[float], seed: int) -> None:
    events = journal(profile, at, seed=seed)
    assert events == journal(profile, at, seed=seed)
    assert events[-1].kind == "ended" and events[-1].step == profile.steps
    times = [event.at for event in events]
    assert times == sorted(times)
    result = account(events)
    assert tuple(result.badput_s) == CAUSES
    assert result.productive_s == pytest.approx(profile.steps * profile.step_s)
    assert result.total_s == pytest.approx(result.productive_s + sum(result.badput_s.values()))
    assert result.total_s == pytest.approx(times[-1])
    assert len(interruptions(events)) <= len(set(at))


@given(profiles, moments, st.floats(0, 1000))
@settings(max_examples=20)
def test_longer_wait_for_nodes_costs_exactly_its_length(profile: Profile, at: list[float], more_s: float) -> None:
    slower = profile.model_copy(update={"wait_s": profile.wait_s + more_s})
    restarts = len(interruptions(journal(profile, at)))
    longer = run(slower, at).total_s - run(profile, at).total_s
    assert longer == pytest.approx(restarts * more_s, abs=1e-6)
    assert run(slower, at).share <= run(profile, at).share + 1e-9


def test_it_stops_to_look_at_a_training_that_goes_on() -> None:
    profile = Profile(work_s=1e9, notice_s=0)
    events = journal(profile, schedule(3600, 1, 36_000, seed=1), until_s=36_000)
    assert events[-1].kind != "ended"
    restarts = sum(event.kind == "started" for event in events) - 1
    assert 36_000 - 60 < events[-1].at - restarts * profile.wait_s <= 36_000


def test_schedules_are_poisson_by_node() -> None:
    few, many = schedule(1000, 3, 1e6, seed=4), schedule(1000, 30, 1e6, seed=4)
    assert few == schedule(1000, 3, 1e6, seed=4) != schedule(1000, 3, 1e6, seed=5)
    assert set(few) <= set(many)
    for result, mean in ((few, 3000), (many, 30_000)):
        assert abs(len(result) - mean) < 5 * math.sqrt(mean)
        assert result == sorted(result) and result[0] > 0 and result[-1] < 1e6
    gaps = [later - earlier for earlier, later in pairwise(few)]
    mean = sum(gaps) / len(gaps)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "per_node_h", "save_s"), [(3, 5.0, 8.0), (3, 5.0, 60.0), (300, 100.0, 2.0)])
def test_young_and_daly_are_within_a_tenth_of_the_best(nodes: int, per_node_h: float, save_s: float) -> None:
    profile = Profile(save_s=save_s, step_s=5.0, wait_s=0, start_s=0)
    plan = plan_interval(profile, nodes, per_node_h * 3600, schedules=2)
    assert plan.interruption_every_s == per_node_h * 3600 / nodes
    assert plan.young_daly_s == pytest.approx(math.sqrt(2 * save_s * plan.interruption_every_s))
    assert plan.young_daly_goodput <= plan.best_goodput
    # Starts cost nothing here: all that is missing is saves and work that is done again.
    assert 1 / plan.young_daly_goodput - 1 <= 1.1 * (1 / plan.best_goodput - 1)
    assert 0.4 < plan.best_s / plan.young_daly_s < 2.5


@pytest.mark.slow
def test_more_nodes_save_more_often_for_less() -> None:
    few, many = (plan_interval(Profile(), nodes, 20 * 3600, schedules=1) for nodes in (3, 300))
    assert many.best_s < few.best_s
    assert many.best_goodput < few.best_goodput


def test_interval_does_not_help_a_gang_that_falls_at_its_start() -> None:
    plan = plan_interval(Profile(), 300, 5 * 3600)
    assert plan.best_goodput < 0.1
