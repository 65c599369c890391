"""What people are told of iterations and runs, by a real web server; once, and never not at all."""

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.records import Ending, conclude
from jobs.definitions import definitions
from jobs.notices import notices_due
from pipeline.rollout.fold import read_state
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from tests.jobs.test_sensors import tick
from tests.labels import label
from tests.loop import deployment
from tests.opened import open_rollout
from tests.pipeline.rollout.webhook import Webhook, webhook

WHY = "a prompt: my landlord is called"
pytestmark = pytest.mark.slow
Look = Callable[[], None]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with webhook() as running:
        monkeypatch.setenv("NOTIFY_URL", running.url)
        yield running


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def look(tmp_path: Path, instance: dg.DagsterInstance, hook: Webhook) -> Look:
    """A tick of the sensor, which goes on from the tick before."""
    cursor: str | None = None

    def next_tick() -> None:
        nonlocal cursor
        asked, cursor = tick(notices_due, tmp_path, cursor, instance)
        assert asked == []

    return next_tick


def end(root: Path, id: str, ending: Ending) -> None:
    store = deployment(root).store()
    conclude(store, label(store, id, {}), ending, WHY)


def hold(root: Path) -> None:
    settings = deployment(root)
    store, name = settings.store(), settings.recipe().base_model.name
    open_rollout(settings, root, 1.0)
    for phase in (Phase.GATED, Phase.HELD):
        state = read_state(store, name)
        append(store, name, state, step_event(state, 2.0, RolloutStep(phase=phase, reason="the slot is wrong")))


def test_endings_and_rollouts_are_told_once(tmp_path: Path, hook: Webhook, look: Look) -> None:
    end(tmp_path, "long ago", "refused")
    look()
    assert hook.messages == [], "the first tick only records"
    for ending in ("rollout", "held", "not trained", "refused", "stopped"):
        end(tmp_path, ending, ending)
    hold(tmp_path)
    look()
    look()
    (message,) = hook.messages
    assert [line.split(": ")[1] for line in message.splitlines()] == ["HELD", "HELD", "FAIL", "STOPPED"]
    assert WHY not in message


def test_a_failed_run_is_told(hook: Webhook, look: Look, instance: dg.DagsterInstance) -> None:
    look()
    job = definitions.resolve_job_def("preference_tuning")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run, WHY)
    look()
    look()
    (message,) = hook.messages
    assert message.startswith(f"arithmetic: RUN FAILED, preference_tuning (run {run.run_id})")
    assert WHY not in message


def test_a_receiver_that_is_away_gets_it_later(tmp_path: Path, hook: Webhook, look: Look) -> None:
    look()
    end(tmp_path, "first", "held")
    hook.status = 500
    look()
    hook.status = 200
    look()
    look()
    assert len(hook.messages) == 2
    assert hook.messages[0] == hook.messages[1]


def test_without_an_address_nobody_is_told(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    end(tmp_path, "first", "held")
    assert tick(notices_due, tmp_path, None, instance) == ([], None)
