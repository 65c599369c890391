"""The history: every rollout and decision, each with its entry in the audit log, or a word that it has none."""

import re

import pytest

from assets.resources import Deployment
from jobs.rollout import main
from pipeline.core import audit
from pipeline.rollout.record import Phase, RolloutStep, append, step_event
from tests.jobs.rollout.decided import NAME, state


def told(capsys) -> str:
    assert main(["history"]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_history_has_each_decision_and_who_took_it(settings: Deployment, held: str, capsys) -> None:
    main(["resume", "--reason", "metrics are back", "--by", "ada"])
    main(["pause", "--reason", "a holiday", "--by", "bob"])
    main(["rollback", "--reason", "it insults people", "--by", "ada"])
    capsys.readouterr()
    out = told(capsys)
    assert f"rollout {held}: version 7" in out
    assert ", proposed by bob" in out
    for words in ("metrics are back (by ada)", "a holiday (by bob)", "it insults people (by ada)"):
        assert re.search(rf"{re.escape(words)} \[audit \d+\]", out)
    assert "Every decision has its entry in the audit log" in out
    assert audit.verify(settings.store()).flaw == ""


def test_each_audited_event_has_an_entry_of_its_own(settings: Deployment, held: str, capsys) -> None:
    main(["resume", "--reason", "r"])
    main(["abort", "--reason", "r"])
    capsys.readouterr()
    numbers = re.findall(r"\[audit (\d+)\]", told(capsys))
    entries = [str(entry.n) for entry in audit.entries(settings.store())]
    assert numbers == entries and len(set(numbers)) == 4  # the first weight, held, resumed, aborted


def test_a_decision_without_an_entry_is_named(settings: Deployment, held: str, capsys) -> None:
    """A process that died between the event and the log."""
    now = state(settings)
    step = RolloutStep(phase=Phase.ROLLING_BACK, reason="enough", by="ada", action="abort")
    append(settings.store(), NAME, now, step_event(now, 2000.0, step))
    assert f"Not in the audit log: {held} epoch {now.epoch + 1}" in told(capsys)
    main(["abort", "--reason", "take it to its end"])
    capsys.readouterr()
    assert "Not in the audit log" not in told(capsys)


def test_without_a_rollout_there_is_no_history(settings: Deployment, capsys) -> None:
    assert main(["history"]) == 1
    assert "No candidate was ever rolled out" in capsys.readouterr().out
