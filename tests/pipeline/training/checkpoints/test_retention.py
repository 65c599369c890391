"""Retention, and a machine that commits, damages, restarts and is always resumed from the newest that is whole."""

import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.manifest import CheckpointManifest, keep

from .conftest import FILES, HARMS, Run, is_whole

pytestmark = pytest.mark.slow

SCORES = st.one_of(st.none(), st.just(math.nan), st.sampled_from([0.0, 0.25, 0.5, 1.0]))


def at(step: int, score: float | None) -> CheckpointManifest:
    return CheckpointManifest(plan_digest="p", step=step, world_size=1, score=score, files={})


@given(
    st.dictionaries(st.integers(1, 30), SCORES, min_size=1), st.integers(1, 4), st.integers(0, 3), st.integers(1, 30)
)
def test_keep(scores: dict[int, float | None], last: int, best: int, committed: int) -> None:
    scores[committed] = scores.get(committed)
    kept = keep([at(*one) for one in scores.items()], committed, Checkpoints(keep_last=last, keep_best=best))
    past = sorted(step for step in scores if step <= committed)
    assert set(past[-last:]) <= kept <= set(past)
    assert len(kept) <= last + best
    real = {step: score for step in past if (score := scores[step]) is not None and not math.isnan(score)}
    if best and real:
        assert min(step for step, score in real.items() if score == max(real.values())) in kept
    dropped = [real[step] for step in real.keys() - kept]
    also = [real[step] for step in real.keys() & kept]
    assert best == 0 or sum(score >= max(dropped, default=-1.0) for score in also) >= min(best, len(real))


class Attempts(RuleBasedStateMachine):
    """Attempts of one training; `whole` holds the score by step of what lies there undamaged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.step = 0
        self.start()

    @rule()
    def start(self) -> None:
        self.run = Run(Path(self.folder.name), keep_last=2, keep_best=1)
        found = self.run.checkpoints.newest()
        self.step = int(found.name[5:]) if found else 0

    @rule(stride=st.integers(1, 3), score=SCORES)
    def commit(self, stride: int, score: float | None) -> None:
        self.step += stride
        assert is_whole(self.run.save(self.step, score))
        assert self.run.newest() == f"step-{self.step:06d}"

    @precondition(lambda self: self.there())
    @rule(data=st.data(), harm=st.sampled_from(sorted(HARMS)), name=st.sampled_from(FILES))
    def damage_and_start(self, data: st.DataObject, harm: str, name: str) -> None:
        victim = data.draw(st.sampled_from(sorted(self.there()))) / name
        if victim.is_file() and victim.stat().st_size:
            HARMS[harm](victim)
        self.start()

    @invariant()
    def the_newest_whole_one_is_found(self) -> None:
        whole = sorted(folder.name for folder in self.there() if is_whole(folder))
        assert self.run.newest() == (whole[-1] if whole else None)
        best = self.run.checkpoints.best()
        assert (best is not None and is_whole(best)) if whole else best is None

    def there(self) -> list[Path]:
        return list(self.run.root.glob("step-*"))

    def teardown(self) -> None:
        self.folder.cleanup()


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(max_examples=15, stateful_step_count=12)
