import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.rollout.evidence import ArmLook, LiveEvidence, StageTally, UnitCounts, summed
from pipeline.rollout.shares import Latencies
from tests.pipeline.rollout.looks import POLICY, arm_look, look, units


def stage(looks, policy=POLICY, evidence=None):
    """The evidence after these looks, as the controller goes about it."""
    evidence, tally = evidence or LiveEvidence(), StageTally()
    for each in looks:
        tally = tally.plus(each, evidence.slow_over_s)
        evidence = summed(tally, evidence, policy)
    return evidence


unit_counts = st.builds(UnitCounts, requests=st.integers(0, 5).map(float), errors=st.integers(0, 5).map(float))
arms = st.dictionaries(st.sampled_from("uvwxyz"), unit_counts, max_size=4).map(lambda each: ArmLook(units=each))


@given(st.lists(st.tuples(arms, arms), max_size=6))
def test_sums_are_those_of_all_looks_by_user(drawn):
    seen = stage([look(champion, canary) for champion, canary in drawn])
    for name, index in (("champion", 0), ("canary", 1)):
        of_arm = [pair[index] for pair in drawn]
        requests, arm = sum(each.sum().requests for each in of_arm), getattr(seen, name)
        assert arm.requests == requests
        assert arm.users == len({key for each in of_arm for key, unit in each.units.items() if unit.requests})
        assert requests == 0 or arm.errors.hits == sum(each.sum().errors for each in of_arm)
    both = {key for pair in drawn for key in pair[0].units} & {key for pair in drawn for key in pair[1].units}
    assert seen.both == len(both)


def test_requests_are_silent_until_one_is_answered():
    dead = look(canary=arm_look("b", 5, 4.0, errors=4.0))
    assert stage([dead, dead]).silent == 40
    assert stage([look(), dead]).silent == 20
    assert stage([dead, look()]).silent == 0
    assert stage([dead, look(canary=ArmLook(units={}))]).silent == 20
    assert stage([dead, look(canary=arm_look("b", 5, 4.0, errors=3.0))]).silent == 0


def test_threshold_is_frozen_once_and_slow_counts_from_then():
    busy = look(champion=arm_look("a", 100, 10.0), canary=arm_look("b", slow=5.0))
    before = stage([busy])
    assert before.slow_over_s is None
    frozen = stage([busy, busy])
    assert frozen.slow_over_s == 2.0
    assert frozen.canary.slow.trials == 0
    after = stage([busy, busy, busy])
    assert (after.canary.slow.hits, after.canary.slow.trials, after.champion.slow.trials) == (50, 100, 1000)
    slower = busy.champion.model_copy(update={"latencies": Latencies(edges_s=(9.0,), counts=(9000.0,))})
    assert stage([busy, busy, look(slower)]).slow_over_s == 2.0


def test_grades_count_from_the_stages_first_request():
    late = look(start=100.0, end=160.0, graded_until=40.0)
    assert stage([late]).graded_until == 100.0
    assert stage([late, look(start=160.0, end=220.0, graded_until=130.0)]).graded_until == 130.0
    assert stage([late, look(start=160.0, end=220.0, graded_until=40.0)]).graded_until == 100.0


def test_sample_is_based_on_the_champions_first_hundred_grades():
    assert stage([look(champion=arm_look("a", 9, 11.0))]).basis is None
    first = look(champion=arm_look("a", 100, 1.0, correct=0.7))
    basis = stage([first]).basis
    assert basis is not None and basis.quality == pytest.approx(71 / 102) and basis.design_effect is None
    worse = look(champion=arm_look("a", 100, 1.0, correct=0.1))
    assert stage([first, worse]).basis == basis


def test_clustering_is_measured_once_answers_were_enough():
    apart = {**units("c", 35, requests=10, graded=10, correct=10), **units("d", 15, requests=10, graded=10)}
    alike = units("e", 300, requests=100, graded=100, correct=70)
    halves = look(ArmLook(units=alike), ArmLook(units=apart))
    begun = stage([halves, halves])
    assert begun.basis is not None and begun.basis.design_effect is None  # 1,000 answers, about 1,520 wanted
    fixed = stage([halves] * 4)
    assert fixed.basis is not None and fixed.basis.design_effect is not None
    assert fixed.basis.design_effect == pytest.approx(30, rel=0.05)  # 50 users, 30 answers each, all alike
    assert stage([halves] * 6).basis == fixed.basis


def test_a_resumed_stage_keeps_evidence_and_settles_shares():
    held = stage([look(arm_look("u", 3), arm_look("u", 2))])
    resumed = held.resumed()
    assert resumed.at_resume == (held.champion, held.canary)
    assert resumed.both_at_resume == 2
    assert resumed.canary == held.canary
    again = stage([look()], evidence=resumed)
    assert again.at_resume == (held.champion, held.canary) and again.both_at_resume == 2
