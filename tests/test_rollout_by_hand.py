"""What people do to a rollout while the embedded gateway really serves: a server killed, a weight set to 0 by hand."""

import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from assets.resources import Deployment
from assets.rollout import follow_rollout
from assets.traffic import traffic_split
from jobs.rollout import main
from pipeline.core import layout
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.process import running_address
from pipeline.rollout.gateway.spans import recorded
from pipeline.rollout.gateway.split import read_slots
from pipeline.rollout.record import Phase, RolloutState
from pipeline.rollout.router import asked_for, without_canary
from tests.loop import EMBEDDED, SHORT, deployment
from tests.opened import open_rollout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LONG = ("rollout.dwell_s=[600,600]", "rollout.requests_per_look=120")
"""It stays at its first weight until somebody does something."""


@contextmanager
def followed(settings: Deployment) -> Generator[list[RolloutState]]:
    """A run of the rollout in a thread; its last state is in the list once it has ended."""
    ended: list[RolloutState] = []
    run = threading.Thread(target=lambda: ended.append(follow_rollout(settings, print, 300.0)), daemon=True)
    run.start()
    yield ended
    run.join(300)
    assert not run.is_alive()


def awaited(settings: Deployment, holds: Callable[[RolloutState], bool]) -> RolloutState:
    name = settings.recipe().base_model.name
    for _ in range(1200):
        state = read_state(settings.store(), name)
        if holds(state):
            return state
        time.sleep(0.1)
    raise AssertionError(f"it is {state.phase}: {state.reason}")


def slot_server(settings: Deployment, digest: str) -> int:
    """The pid of the server of a model."""
    table = read_slots(settings.store(), settings.recipe().base_model.name)
    assert table is not None
    slot = table.slot_of(digest)
    assert slot is not None
    port = slot.url.removesuffix("/v1").rpartition(":")[2].encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (entry / "cmdline").exists():
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"-m", b"pipeline.serving.slot_server"] and port in words:
                return int(entry.name)
    raise AssertionError("no process serves it")


@pytest.mark.variant
def test_a_canary_whose_server_is_killed_goes_unnoticed(tmp_path: Path) -> None:
    settings = deployment(tmp_path / "data", LONG)
    open_rollout(settings, tmp_path, time.time())
    with followed(settings) as ended:
        state = awaited(settings, lambda s: s.phase is Phase.OBSERVING and s.watch.looks > 0)
        assert state.proposal is not None
        os.kill(slot_server(settings, state.proposal.version.model.digest), signal.SIGKILL)
    assert ended[0].phase is Phase.ABORTED, "it is taken out, and not blamed"
    assert ended[0].past.quarantined == {}
    name = settings.recipe().base_model.name
    rows = list(recorded(settings.store().path(layout.served(name)), 0.0, time.time()))
    failed = [row for row in rows if row.failed]
    assert failed, "the canary's failures are on record"
    assert {row.marks["rollout.served_by"] for row in failed} == {"champion"}, "who answered all the same"
    assert running_address(settings.store().path(layout.gateway(name))) is None, "its servers ended with the run"


@pytest.mark.variant
def test_a_weight_that_is_set_to_0_by_hand_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = deployment(tmp_path / "data", LONG)
    rollout = open_rollout(settings, tmp_path, time.time())
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", " ".join([*SHORT, f"data_root={tmp_path / 'data'}", *LONG]))
    with followed(settings) as ended:
        awaited(settings, lambda s: s.phase is Phase.OBSERVING and s.watch.looks > 0)
        split = traffic_split(settings)
        asked = asked_for(split.read())
        assert asked is not None
        split.apply(without_canary(asked))
    assert (ended[0].phase, ended[0].canary_weight) == (Phase.HELD, 0)
    assert main(["abort", "--reason", "seen enough", "--rollout", rollout]) == 0
    assert awaited(settings, lambda s: not s.active).phase is Phase.ABORTED
