"""A rollout that is held, by the stages themselves: the next candidate waits, and is let in after a person decided."""

from pathlib import Path

import dagster as dg
import pytest

from assets.outcome import outcome
from assets.registry import advance
from assets.resources import Deployment
from jobs.rollout import main
from pipeline.iteration import Iteration
from pipeline.registry.record import Phase, read_events, read_state
from tests.loop import EMBEDDED, SHORT, deployment, instance, materialized, run_loop

pytestmark = pytest.mark.slow

OTHER = ["training.seed=2"]
"""The same traces under another recipe: another iteration."""


def data_of(settings: Deployment, iteration: Iteration) -> Path:
    return settings.store().path(iteration.path("training", "data.parquet"))


def warned(home: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> str:
    return "\n".join(e.user_message for e in home.all_logs(run.run_id) if e.level >= 30)


def test_the_next_candidate_waits_for_a_held_rollout_and_then_enters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, later = deployment(tmp_path / "data"), deployment(tmp_path / "data", OTHER)
    store, name = settings.store(), settings.recipe().base_model.name
    with instance(tmp_path / "home") as home:
        assert run_loop(settings, home).success
        first = settings.latest()

        # Nobody can tell any more what the candidate was trained on, so nothing may be replayed to it.
        aside = data_of(settings, first).rename(tmp_path / "data.parquet")
        lines: list[str] = []
        held = advance(settings, 60.0, lines.append)
        assert held.phase is Phase.HELD
        assert "was trained on are gone" in held.reason

        waits = run_loop(later, home)
        assert waits.success
        assert "canary" not in materialized(waits)
        second = later.latest()
        assert second.id != first.id
        assert "python -m jobs.rollout status" in warned(home, waits)
        assert outcome(store, second) is None

        # The rows are back: a held rollout is measured, and stays where it is.
        aside.rename(data_of(settings, first))
        still = advance(settings, 60.0, lines.append)
        assert (still.phase, still.looks, still.canary_weight) == (Phase.HELD, held.looks + 1, held.canary_weight)
        assert still.evidence.canary.graded > 0

        monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
        monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join([*SHORT, f"data_root={tmp_path / 'data'}"]))
        assert main(["abort", "--reason", "the next one is better", "--rollout", held.rollout]) == 0
        assert "the router reads 0%" in capsys.readouterr().out

        again = run_loop(later, home)  # the same launch once more
        assert again.success
        assert "canary" in materialized(again)
        ended = outcome(store, second)
        assert ended is not None
        assert ended.ending == "rollout"
        assert advance(later, 120.0, lines.append).phase is Phase.PROMOTED
    state = read_state(store, name)
    assert state.champion is not None
    assert state.champion.iteration == second.id
    assert [e.phase for e in read_events(store, name) if e.by] == [Phase.ROLLING_BACK]
