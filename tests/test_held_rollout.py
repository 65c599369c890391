"""A rollout that is held, by the stages themselves: the next candidate waits, and is let in after a person decided."""

import shutil
import time
from pathlib import Path

import dagster as dg
import pytest

from assets.records import outcome
from assets.rollout import follow_rollout, rollout_ports
from jobs.rollout import main
from pipeline.rollout.controller import tick
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase
from tests.fork_server import ForkServer
from tests.iterations import Iterations
from tests.loop import EMBEDDED, SHORT, deployment, forked, instance, materialized, run_loop
from tests.opened import open_rollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def warned(home: dg.DagsterInstance, run: dg.ExecuteInProcessResult) -> str:
    return "\n".join(e.user_message for e in home.all_logs(run.run_id) if e.level == 30)


@pytest.mark.variant
def test_a_candidate_waits_for_a_held_rollout_and_then_enters(
    iterations: Iterations,
    fork_server: ForkServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "data"
    shutil.copytree(iterations.first(tmp_path / "first") / "production", root / "production")
    settings = deployment(root)
    name = settings.recipe().base_model.name
    rollout = open_rollout(settings, tmp_path, time.time())
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join([*SHORT, f"data_root={root}"]))
    tick(rollout_ports(settings), time.time())
    assert main(["pause", "--reason", "let me see it first", "--rollout", rollout]) == 0

    with forked(fork_server), instance(tmp_path / "home") as home:
        waits = run_loop(settings, home)
        assert waits.success
        assert {"model_version", "canary"} - {*materialized(waits)} == {"canary"}
        assert f"rollout {rollout} is held at 0%: let me see it first" in warned(home, waits)
        assert "pt rollout status" in warned(home, waits)
        iteration = settings.latest()
        assert outcome(settings.store(), iteration) is None

        assert main(["abort", "--reason", "the next one is better", "--rollout", rollout]) == 0
        assert "0%" in capsys.readouterr().out

        again = run_loop(settings, home)  # the same launch once more
        assert again.success
        assert "canary" in materialized(again)
        ended = outcome(settings.store(), iteration)
        assert ended is not None
        assert ended.ending == "rollout"
        assert follow_rollout(settings, print, 120.0).phase is Phase.PROMOTED
        assert "warm-up: 32 recent prompts were asked at http://127.0.0.1:" in capsys.readouterr().out
    champion = read_state(settings.store(), name).champion
    assert champion is not None
    assert champion.iteration == iteration.id
