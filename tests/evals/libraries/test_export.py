"""Bundles as Inspect logs: what is in them, and that Inspect reads it back."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from evals import bundle
from evals.__main__ import main
from evals.bundle import SuiteEvidence
from evals.libraries.environment import LibraryEnvironments
from evals.libraries.export import inspect_logs
from evals.results import EvalArm
from evals.suites import Suite
from pipeline.core.storage import Store
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Outcome

Good = tuple[Evaluation, Suite, EvalArm, EvalArm]


def logs_of(good: Good, champion: EvalArm | None = None) -> list[dict]:
    section, suite, old, new = good
    pair = SuiteEvidence(suite=suite, arms=(champion or old, new))
    return inspect_logs(bundle.evidence("it", section, bundle.Gathered((pair,))))


def test_each_arm_is_a_log_with_a_sample_an_answer(good: Good) -> None:
    logs = logs_of(good)
    assert [log["file"] for log in logs] == ["arithmetic-champion.eval", "arithmetic-candidate.eval"]
    assert len({log["id"] for log in logs}) == 2
    for log, arm in zip(logs, good[2:], strict=True):
        placed = [(each["id"], each["epoch"]) for each in log["samples"]]
        assert placed == [(result.id, epoch) for result in arm.results for epoch in (1, 2, 3, 4)]
        assert [each["text"] for each in log["samples"]] == [s.text for result in arm.results for s in result.samples]
        right = sum(s.outcome is Outcome.correct for result in arm.results for s in result.samples)
        assert log["metrics"] == {"accuracy": right / len(placed)}


def test_an_answer_keeps_its_stop_slice_and_outcome(good: Good, with_sample: Callable[..., EvalArm]) -> None:
    log = logs_of(good, with_sample(good[2], 1, finished=False, outcome=Outcome.timeout, defects=("pii",)))[0]
    first = log["samples"][0]
    assert (first["stop"], first["value"], first["explanation"]) == ("max_tokens", None, "timeout, pii")
    assert first["metadata"] == {"cluster": "step-0000", "slice": "even"}
    assert first["target"] == "0"


def test_export_without_an_environment_says_what_to_do(
    good: Good, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(published(good, tmp_path)), "--inspect", str(tmp_path / "logs"), "--python", ""]) == 1
    assert "INSPECT_PYTHON" in capsys.readouterr().err
    assert not (tmp_path / "logs").exists()


def published(good: Good, root: Path) -> Path:
    section, suite, old, new = good
    bundle.publish(
        Store(root),
        "b",
        bundle.evidence("it", section, bundle.Gathered((SuiteEvidence(suite=suite, arms=(old, new)),))),
    )
    return root / "b"


READ_BACK = """
import json, sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
print(json.dumps({
    "status": log.status, "accuracy": log.results.scores[0].metrics["accuracy"].value,
    "samples": sorted([s.id, s.epoch, s.output.completion, s.scores["check"].value, s.metadata["cluster"],
                       s.output.choices[0].stop_reason, s.output.usage.output_tokens] for s in log.samples),
}))
"""


@pytest.mark.inspect
@pytest.mark.slow
def test_inspect_reads_an_exported_log_back(
    good: Good, with_sample: Callable[..., EvalArm], with_inspect: LibraryEnvironments, tmp_path: Path
) -> None:
    section, suite, old, new = good
    good = section, suite, with_sample(old, 3, finished=False, outcome=Outcome.no_answer, text="ünfinished"), new
    python, folder = with_inspect.inspect.python, tmp_path / "logs"
    assert main(["export", str(published(good, tmp_path)), "--inspect", str(folder), "--python", python]) == 0
    for expected in logs_of(good):
        command = [python, "-I", "-c", READ_BACK, str(folder / expected["file"])]
        read = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert (read["status"], read["accuracy"]) == ("success", expected["metrics"]["accuracy"])
        assert read["samples"] == sorted(
            [s["id"], s["epoch"], s["text"], s["value"], s["metadata"]["cluster"], s["stop"], s["tokens"]]
            for s in expected["samples"]
        )
