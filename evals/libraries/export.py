"""An evidence bundle as Inspect logs, for `inspect view`: one log for each suite and model.

Owns what of the evidence a log holds, as plain JSON. Refuses to import inspect_ai: scripts/inspect_export.py does, in
its own environment. A log is for reading; the verdict is the bundle's alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from evals import bundle
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.libraries.environment import LibraryEnvironment
from evals.results import EvalArm
from pipeline.core.conversation import shown, shown_answer
from pipeline.core.storage import digest_json
from pipeline.rewards.verifiers import Outcome

VALUES = {Outcome.correct: "C", Outcome.wrong: "I", Outcome.no_answer: "N"}
"""Inspect's own words for a score; any other outcome is a sample that Inspect calls unscored."""
ARMS = ("champion", "candidate")


class WrittenLog(NamedTuple):
    path: Path
    bytes: int


def export(path: Path, folder: Path, environment: LibraryEnvironment) -> list[WrittenLog]:
    """Write the logs of the bundle at `path` into `folder`, over those of an earlier export.

    Raises ValueError for an altered bundle or a missing environment.
    """
    logs = inspect_logs(bundle.read(path))
    written = environment.call("inspect_export", "export", folder=str(folder.absolute()), logs=logs)
    return [WrittenLog(folder / each["file"], each["bytes"]) for each in written]


def inspect_logs(evidence: EvalEvidence) -> list[dict[str, Any]]:
    """What scripts/inspect_export.py writes, in the order of the suites, champion first."""
    return [
        _log(evidence, each, name, arm) for each in evidence.suites for name, arm in zip(ARMS, each.arms, strict=True)
    ]


def _log(evidence: EvalEvidence, each: SuiteEvidence, name: str, arm: EvalArm) -> dict[str, Any]:
    suite, plan = each.suite, arm.protocol.answers
    role = evidence.provenance.section.suite(suite.name).role
    id = digest_json([evidence.provenance.iteration, suite.name, name, arm.model.digest, arm.protocol.digest()])[:22]
    samples = _samples(each, arm, id)
    graded = [sample for sample in samples if sample["value"] is not None]
    right = sum(sample["value"] == "C" for sample in graded)
    return {
        "file": f"{suite.name}-{name}.eval",
        "id": id,
        "run": digest_json(evidence.provenance.iteration)[:22],
        "task": suite.name,
        "display": f"{suite.name} ({name})",
        "model": f"{name}/{arm.model.digest[:12]}",
        "items": len(suite.items),
        "epochs": arm.protocol.samples,
        "config": {
            "temperature": plan.temperature,
            "max_tokens": plan.max_completion_tokens,
            "seed": plan.seed,
        },
        "tags": [name, role],
        "metadata": {
            "iteration": evidence.provenance.iteration,
            "arm": name,
            "role": role,
            "model": arm.model.uri,
            "model_digest": arm.model.digest,
            "protocol": arm.protocol.model_dump(mode="json"),
        },
        "scorer": "check",
        "metrics": {"accuracy": right / len(graded)} if graded else {},
        "samples": samples,
    }


def _samples(each: SuiteEvidence, arm: EvalArm, id: str) -> list[dict[str, Any]]:
    """A sample of an item is an epoch of it."""
    items = {item.id: item for item in each.suite.items}
    return [
        {
            "id": result.id,
            "epoch": epoch,
            "uuid": digest_json([id, result.id, epoch])[:22],
            "messages": shown(each.suite.messages(items[result.id])),
            "target": items[result.id].reference,
            "text": shown_answer(sample.text),
            "tokens": sample.tokens,
            "prompt_tokens": result.prompt_tokens,
            "stop": "stop" if sample.finished else "max_tokens",
            "value": VALUES.get(sample.outcome),
            "answer": sample.answer,
            "explanation": ", ".join([str(sample.outcome), *sample.defects]),
            "metadata": {"cluster": items[result.id].cluster, "slice": items[result.id].slice},
        }
        for result in arm.results
        for epoch, sample in enumerate(result.samples, start=1)
    ]
