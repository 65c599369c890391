"""What people are told of iterations and runs, by a real web server; once, and never not at all."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from assets.records import Ending, conclude
from jobs.definitions import definitions
from jobs.notices import tell
from jobs.sensors import notices_due
from tests.jobs.test_sensors import tick
from tests.labels import label
from tests.loop import deployment
from tests.pipeline.rollout.webhook import Webhook, webhook

WHY = "a prompt: my landlord is called"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    with webhook() as running:
        monkeypatch.setenv("NOTIFY_URL", running.url)
        yield running


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.instance_for_test() as made:
        yield made


def end(root: Path, id: str, ending: Ending) -> None:
    store = deployment(root).store()
    iteration = label(store, id, {})
    conclude(store, iteration, ending, WHY)


def send(root: Path, instance: dg.DagsterInstance) -> None:
    assert tell.execute_in_process(instance=instance, resources={"deployment": deployment(root)}).success


def is_due(root: Path, instance: dg.DagsterInstance) -> bool:
    return bool(tick(notices_due, root, None, instance)[0])


def fail(instance: dg.DagsterInstance, job: str) -> str:
    run = instance.create_run_for_job(definitions.resolve_job_def(job), status=dg.DagsterRunStatus.STARTED)
    instance.report_run_failed(run, WHY)
    return run.run_id


@pytest.mark.slow
def test_endings_that_want_a_person_are_told(tmp_path: Path, hook: Webhook, instance: dg.DagsterInstance) -> None:
    assert not is_due(tmp_path, instance)
    end(tmp_path, "long ago", "refused")
    end(tmp_path, "first", "held")
    assert is_due(tmp_path, instance)
    send(tmp_path, instance)
    assert hook.messages[0].startswith("arithmetic, iteration first: HELD"), "the newest alone, where nothing was told"
    assert not is_due(tmp_path, instance)
    for ending in ("rollout", "not trained", "refused", "stopped"):
        end(tmp_path, ending, ending)
    send(tmp_path, instance)
    send(tmp_path, instance)
    lines = hook.messages[1].splitlines()
    assert [line.split(": ")[1] for line in lines] == ["FAIL", "STOPPED"]
    assert len(hook.messages) == 2
    assert WHY not in "\n".join(hook.messages)


@pytest.mark.slow
def test_a_failed_run_is_told(tmp_path: Path, hook: Webhook, instance: dg.DagsterInstance) -> None:
    end(tmp_path, "first", "held")
    send(tmp_path, instance)
    run = fail(instance, "preference_tuning")
    fail(instance, "tell")  # would tell of itself for ever
    assert is_due(tmp_path, instance)
    send(tmp_path, instance)
    assert hook.messages[1].startswith(f"arithmetic: RUN FAILED, preference_tuning (run {run})")
    assert WHY not in hook.messages[1]
    assert not is_due(tmp_path, instance)


@pytest.mark.slow
def test_a_receiver_that_is_away_fails_nobody_and_gets_it_later(
    tmp_path: Path, hook: Webhook, instance: dg.DagsterInstance
) -> None:
    end(tmp_path, "first", "held")
    hook.status = 500
    send(tmp_path, instance)
    hook.status = 200
    assert is_due(tmp_path, instance)
    send(tmp_path, instance)
    assert len(hook.messages) == 2
    assert hook.messages[0] == hook.messages[1]


def test_without_an_address_nobody_is_told(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    end(tmp_path, "first", "held")
    assert not is_due(tmp_path, instance)
