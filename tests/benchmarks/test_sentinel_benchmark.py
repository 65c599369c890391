"""A planted failure and a clean training of the embedded model, as the benchmark judges them."""

import pytest

from benchmarks.sentinel import Job, ended, judge


@pytest.mark.variant
@pytest.mark.slow
def test_sentinel_stops_a_real_training_that_goes_wrong() -> None:
    from benchmarks.sentinel_plants import CLEAN, PLANTS, train

    plants = {plant.name: plant for plant in (*PLANTS, *CLEAN)}
    wrong = train(plants["DPO collapse"], 1, lambda rows: len(rows) >= 15 or ended(rows))
    assert judge(Job("DPO collapse", 1), wrong).stopped_at
    right = train(plants["DPO, 60 steps"], 1, lambda rows: len(rows) >= 10)
    assert judge(Job("DPO, 60 steps", 1), right).held_at is None
