"""The simulated training of the benchmark against closed forms."""

import pytest

from benchmarks.preemption import Profile, run
from pipeline.recipe import Checkpoints


def test_undisturbed_it_is_work_and_saves_and_its_two_ends() -> None:
    profile = Profile(work_s=1000, step_s=10, save_s=4, start_s=60, end_s=30, checkpoints=Checkpoints(every_steps=10))
    result = run(profile, ())
    assert result.productive_s == 1000
    assert result.badput_s == {"start": 60, "save": 36, "validation": 0, "lost": 0, "waiting": 0, "end": 30}


@pytest.mark.parametrize(
    ("changed", "lost"),
    [
        ({}, 0),
        ({"notice_s": 0.0}, 4),
        ({"sigterm_saves": 0.0}, 4),
        ({"step_s": 150.0}, 4),  # longer than the grace
        ({"grace_s": 9.0}, 5),  # the step ends within it, and the save does not
        ({"notice_s": 2.0}, 4),  # the node goes before the step ends
        ({"save_s": 95.0}, 5),
    ],
)
def test_a_notice_saves_where_there_is_time_to(changed: dict[str, float], lost: int) -> None:
    first = Profile(work_s=2000, step_s=10, save_s=2, checkpoints=Checkpoints(every_steps=8))
    profile = first._replace(**changed)
    result = run(profile, [profile.start_s + 4.2 * profile.step_s])
    assert round(result.badput_s["lost"] / profile.step_s) == lost
