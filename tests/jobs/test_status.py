"""`pt status`: how the newest iteration ended and what to type next, and what waits for a person."""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from assets.environment import chosen
from assets.records import Ending
from evals.gate import Verdict
from jobs import status
from jobs.workers import WORKERS, WorkerFiles
from pipeline.core import layout
from pipeline.recipe import load, split_overrides
from pipeline.training.journal import TrainingJournal
from pipeline.training.result import Health, HealthFinding
from tests.assets.laid import EMBEDDED, Laid
from tests.pipeline.rollout.conftest import NAME, version_of


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laid:
    """A deployment whose directory is the working one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv(
        "PREFERENCE_TUNING_OVERRIDES", f"data_root={tmp_path}/data base_model.name={NAME} 'name=with a space'"
    )
    return Laid(tmp_path / "data")


@pytest.fixture
def worker(laid: Laid) -> Iterator[subprocess.Popen[bytes]]:
    """A run at work on the deployment's data root, as its launcher leaves it."""
    files = WorkerFiles(WORKERS)
    files.directory.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        files.add("0123456789", "preference_tuning", str(laid.store.root), process.pid)
        yield process
        process.kill()


def screen(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and the screen with its folded sentences in one line."""
    code = status.main(arguments)
    return code, " ".join(capsys.readouterr().out.split())


def test_an_empty_root_is_told_what_to_type_first(laid: Laid, capsys) -> None:
    code, text = screen(capsys)
    assert code == 0 and not laid.store.root.exists(), "it looks, and makes nothing"
    assert "iteration none yet" in text and "run none is at work" in text and "the recipe's base model" in text
    assert "dagster job launch -j preference_tuning makes the first iteration" in text


def test_a_run_is_shown_with_its_stage_and_step_until_a_kill(laid: Laid, worker, capsys) -> None:
    iteration = laid.begin()
    laid.label(iteration)
    laid.plan(iteration)
    TrainingJournal(laid.store.path(iteration.path(layout.JOURNAL))).add("step", 7)
    code, text = screen(capsys)
    assert code == 0 and "run 01234567 of preference_tuning is at work" in text
    assert (
        "in progress at stage reward_model, step 7" in text
        and "traces 80 of 100 rows admitted" in text
        and "pt status says how far the run is, which goes on by itself" in text
    )
    assert WorkerFiles(WORKERS).at_work(laid.store.root / "other") == []
    worker.kill()
    worker.wait()
    code, text = screen(capsys)
    assert code == 0 and "run none is at work" in text
    assert typed(laid)[0].purpose.endswith("over newer traces, another champion or recipe it begins another")
    laid.store.write(iteration.path(layout.MODEL_VERSION), version_of("a", 1, iteration))
    assert typed(laid)[0].purpose == "goes on where it stands"


def test_a_promotion_is_shown_with_figures(laid: Laid, capsys) -> None:
    iteration = laid.roll_out()
    code, text = screen(capsys)
    assert code == 0 and f"1 ({iteration.id})" in text
    for words in (
        "champion version 1, promoted", "on arithmetic", "phase promoted since", "gain +",
        "for each +0.01", "starts the next iteration from it", "health PASS", "held-out prompts 43% → 65%",
        "suite arithmetic 69.2% → 89.8%", "verdict PASS: improvement shown",
        "not in the cost: answers of the evaluation: evaluation.price is not in",
    ):  # fmt: skip
        assert words in text, words


@pytest.mark.parametrize("waits", ["held rollout", "held iteration", "erasure", "damage"])
def test_what_waits_for_a_person_is_exit_code_one(laid: Laid, waits: str, capsys) -> None:
    if waits == "held rollout":
        laid.roll_out(until="observing")
        laid.world.metrics.spoil = lambda look: None
        laid.world.tick_until("held")
        wanted = "the rollout is held at 5%"
    elif waits == "held iteration":
        iteration = laid.end(laid.begin(), "held", "look at it")
        wanted = f"iteration {iteration.id} is held: look at it"
    elif waits == "erasure":
        laid.store.path(layout.pending_erasure("p")).parent.mkdir(parents=True)
        laid.store.path(layout.pending_erasure("p")).write_text("{}")
        wanted = "1 erasure(s) were begun and not ended"
    else:
        iteration = laid.begin()
        laid.store.path(iteration.path(layout.LABELS)).write_text("{")
        wanted = f"records of iteration {iteration.id} cannot be read: reward_labels"
    code, text = screen(capsys)
    assert code == 1 and f"a person {wanted}" in text


def test_an_unreadable_recipe_or_log_is_exit_code_two(laid: Laid, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    laid.roll_out()
    laid.store.path(layout.rollout(NAME, "events", "000001.json")).unlink()
    assert status.main([]) == 2 and "is missing, though later events are there" in capsys.readouterr().err
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", "no.yaml")
    assert status.main([]) == 2 and "status: No recipe at" in capsys.readouterr().err


def test_a_machine_reads_the_same_as_json(laid: Laid, capsys) -> None:
    iteration = laid.roll_out()
    assert status.main(["--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    assert fields["iteration"]["iteration"] == iteration.id and fields["iteration"]["state"] == "promoted"
    assert fields["kpi"]["champion_version"] == 1 and fields["rollout"]["state"]["phase"] == "promoted"
    assert fields["waits_for_person"] == [] and fields["run"] is None


def typed(laid: Laid) -> tuple[status.NextStep, list[str]]:
    """What may be typed next, and the overrides that it sets."""
    step = status.read_deployment(1e9).next
    first = shlex.split(step.command)[0]
    assert first.startswith("PREFERENCE_TUNING_OVERRIDES=")
    return step, split_overrides(first.partition("=")[2])


@pytest.mark.parametrize(
    ("ending", "override", "purpose"),
    [
        ("refused", "training.seed=2", "trains again, with another seed"),
        ("stopped", "training.seed=2", "trains again, with another seed"),
        ("not trained", "selection.method=grpo", "trains on these traces all the same"),
        ("registered", "", "looks for newer traces"),
    ],
)
def test_an_honest_end_says_why_and_what_to_type(
    laid: Laid, ending: Ending, override: str, purpose: str, capsys
) -> None:
    iteration = laid.until_verdict(verdict=Verdict.FAIL)
    laid.end(iteration, ending, "the reason")
    step, overrides = typed(laid)
    assert step.purpose.startswith(purpose) and step.command.endswith(" dagster job launch -j preference_tuning")
    kept, given = chosen().overrides, load(str(EMBEDDED), overrides)
    assert overrides == [*kept, *([override] if override else [])] and given.data_root == str(laid.store.root)
    assert f"ago, {ending}: the reason" in screen(capsys)[1]


def test_traces_that_hold_nothing_to_train_on_force_no_method(laid: Laid) -> None:
    laid.end(laid.begin(), "not trained", "few prompts")
    assert typed(laid)[0].purpose == "looks for newer traces: these hold nothing to train on"


def test_a_hold_names_its_iteration_to_who_accepts_it(laid: Laid, capsys) -> None:
    iteration = laid.until_verdict()
    finding = HealthFinding(verdict="HOLD", rule="kl", step=7, reason="KL of 0.3")
    laid.train(iteration, health=Health(verdict="HOLD", findings=(finding,)))
    laid.end(iteration, "held", "a long text")
    step, overrides = typed(laid)
    assert load(str(EMBEDDED), overrides).rollout.accept_hold == iteration.id
    assert shlex.split(step.command)[1:] == [
        "dagster", "job", "launch", "-j", "preference_tuning", "-o", "canary", "--tags",
        json.dumps({"iteration": iteration.id}),
    ]  # fmt: skip
    assert "health HOLD; HOLD at step 7: KL of 0.3" in screen(capsys)[1]


def test_a_rollout_is_told_from_its_begin_to_its_end(laid: Laid, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    laid.roll_out(until="observing")
    assert typed(laid)[0].command.endswith(" dagster job launch -j canary_rollout")
    assert "in rollout" in screen(capsys)[1]
    own = [*chosen().overrides, "traces.source={kind: otel, uri: spans}"]
    with monkeypatch.context() as patch:
        patch.setenv("PREFERENCE_TUNING_OVERRIDES", shlex.join(own))
        assert typed(laid)[0].command.endswith(" pt serve") and typed(laid)[1] == own
    laid.world.metrics.spoil = lambda look: None
    laid.world.tick_until("held")
    assert typed(laid)[0].command.endswith(" pt rollout status")


def test_a_candidate_that_was_rolled_back_is_not_promoted(laid: Laid, capsys) -> None:
    laid.roll_out(until="rolled_back")
    assert typed(laid)[0].purpose.startswith("trains again, with another seed; the same launch without it looks for")
    text = screen(capsys)[1]
    assert "ago, rolled back: " in text and "champion the recipe's base model" in text


def test_no_screen_is_wider_than_its_terminal_but_for_commands(laid: Laid) -> None:
    laid.roll_out()
    read = status.read_deployment(1e9)
    lines = list(status.view(read, 1e9, 100))
    folded = [line for line in lines if line.split()[:1] not in (["next"], ["data"], ["iteration"])]
    assert max(map(len, folded)) <= 120
