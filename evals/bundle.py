"""The evidence bundle: everything that a verdict rests on, in one directory that can be carried away and checked.

Owns its files, their digests and the offline recomputation. Refuses to decide: the rule is the gate's.
The bundle's digest is the sha256 of `manifest.json`, which holds the sha256 of every other file.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import TypeVar

from evals import gate
from evals.comparison import BundleRef, EvalReport, Measurement, compare
from evals.gate import GateVerdict
from evals.runner import EvalArm, ItemResult, Protocol
from evals.suites import Item, Suite
from pipeline.locations import Document
from pipeline.recipe import Evaluation
from pipeline.storage import ModelRef, Record, Store, digest_file

MANIFEST = "manifest.json"
FILES = ("candidate.jsonl", "champion.jsonl", "measurement.json", "provenance.json", "suite.jsonl")
_PACKAGES = ("math-verify", "numpy", "pydantic", "scipy")

R = TypeVar("R", bound=Record)


class Provenance(Record):
    """Who was compared, under which protocols, seeds and thresholds, and with which versions."""

    iteration: str
    section: Evaluation
    suite: str
    champion: ModelRef
    champion_protocol: Protocol
    candidate: ModelRef
    candidate_protocol: Protocol
    versions: dict[str, str]


class BundleManifest(Record):
    """sha256 of each file of the bundle but this one."""

    files: dict[str, str]


class EvalEvidence(Record):
    """A bundle in memory."""

    provenance: Provenance
    suite: Suite
    champion: EvalArm
    candidate: EvalArm


def evidence(iteration: str, section: Evaluation, suite: Suite, champion: EvalArm, candidate: EvalArm) -> EvalEvidence:
    """Two finished runs with what was known about them when they finished."""
    provenance = Provenance(
        iteration=iteration,
        section=section,
        suite=suite.name,
        champion=champion.model,
        champion_protocol=champion.protocol,
        candidate=candidate.model,
        candidate_protocol=candidate.protocol,
        versions={"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in _PACKAGES}},
    )
    return EvalEvidence(provenance=provenance, suite=suite, champion=champion, candidate=candidate)


def measure(eval_evidence: EvalEvidence) -> Measurement:
    """The comparison that this evidence carries, or why it carries none."""
    section = eval_evidence.provenance.section
    problems = gate.problems(eval_evidence.suite, eval_evidence.champion, eval_evidence.candidate, section)
    comparison = (
        None if problems else compare(eval_evidence.suite, eval_evidence.champion, eval_evidence.candidate, section)
    )
    return Measurement(problems=tuple(problems), comparison=comparison)


def publish(store: Store, name: str, eval_evidence: EvalEvidence) -> None:
    """Write the bundle under `name` in one step; a bundle that is already there stands."""
    with store.staged(name) as folder:
        _write_lines(folder / "suite.jsonl", eval_evidence.suite.items)
        _write_lines(folder / "champion.jsonl", eval_evidence.champion.results)
        _write_lines(folder / "candidate.jsonl", eval_evidence.candidate.results)
        # References are relative, and so the bundle's digest is the same wherever the data root lies.
        provenance = Document(folder / "provenance.json", store.root)
        provenance.path.write_text(_text(eval_evidence.provenance, provenance))
        (folder / "measurement.json").write_text(_text(measure(eval_evidence)))
        (folder / MANIFEST).write_text(
            _text(BundleManifest(files={name: digest_file(folder / name) for name in FILES}))
        )


def recompute(path: Path) -> EvalReport:
    """The report that a bundle supports, recomputed from its per-item outcomes.

    Raises ValueError when a file is missing, added or altered, or when the numbers recorded with the evidence do not
    come out again to the bit.
    """
    manifest = _intact_manifest(path)
    provenance = _read(path / "provenance.json", Provenance)
    eval_evidence = EvalEvidence(
        provenance=provenance,
        suite=Suite(name=provenance.suite, items=_read_lines(path / "suite.jsonl", Item)),
        champion=EvalArm(
            model=provenance.champion,
            protocol=provenance.champion_protocol,
            results=_read_lines(path / "champion.jsonl", ItemResult),
        ),
        candidate=EvalArm(
            model=provenance.candidate,
            protocol=provenance.candidate_protocol,
            results=_read_lines(path / "candidate.jsonl", ItemResult),
        ),
    )
    measurement = measure(eval_evidence)
    if _text(measurement) != (path / "measurement.json").read_text():
        raise ValueError(
            f"{path}: the outcomes do not give the recorded numbers again. Verify with the recorded versions "
            f"({', '.join(f'{name} {version}' for name, version in provenance.versions.items())}); "
            "if they still differ, discard this bundle."
        )
    return EvalReport(
        iteration=provenance.iteration,
        champion=provenance.champion,
        candidate=provenance.candidate,
        suite=provenance.suite,
        protocol=provenance.candidate_protocol.digest(),
        section=provenance.section,
        measurement=measurement,
        bundle=BundleRef(uri=str(path), digest=manifest),
    )


def verify(path: str | Path, digest: str = "") -> GateVerdict:
    """Recompute the verdict of a bundle offline, to the bit.

    Raises ValueError when the bundle was altered or, where a `digest` is given, when it is another bundle.
    """
    report = recompute(Path(path))
    if digest and report.bundle.digest != digest:
        raise ValueError(
            f"{path} has the digest {report.bundle.digest}, not {digest}. Take the bundle that was judged."
        )
    return gate.judge(report, report.section)


def _intact_manifest(path: Path) -> str:
    """Digest of the manifest, once every file matches it."""
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} has no {MANIFEST}. Give the directory of an evidence bundle.")
    manifest = _read(path / MANIFEST, BundleManifest)
    if _text(manifest).encode() != (path / MANIFEST).read_bytes():
        raise ValueError(f"{path / MANIFEST} was altered. Fetch the bundle again from where it was published.")
    present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}
    if not set(FILES) == set(manifest.files) == present:
        raise ValueError(
            f"{path} holds {sorted(present)} and lists {sorted(manifest.files)}; a bundle is {list(FILES)}. "
            "Fetch the bundle again."
        )
    for name in FILES:
        if digest_file(path / name) != manifest.files[name]:
            raise ValueError(f"{path / name} does not match its digest. Fetch the bundle again; do not edit it.")
    return digest_file(path / MANIFEST)


def _text(record: Record, document: Document | None = None) -> str:
    plain = record.model_dump(mode="json", context=document)
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write_lines(path: Path, records: tuple[Record, ...]) -> None:
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_bytes(), context=Document(path.absolute()))
    except ValueError as error:
        raise ValueError(f"{path} is not a {kind.__name__} ({error}). Fetch the bundle again.") from error


def _read_lines(path: Path, kind: type[R]) -> tuple[R, ...]:
    try:
        return tuple(kind.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line)
    except ValueError as error:
        raise ValueError(f"{path} is not one {kind.__name__} a line ({error}). Fetch the bundle again.") from error
