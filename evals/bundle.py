"""The evidence bundle: all that a verdict rests on, in one directory that can be carried away and recomputed.

manifest.json       sha256 of every other file; its own sha256 is the bundle's digest
provenance.json     who was compared and who judged, under which section of the recipe, protocols and versions
measurement.json    the numbers, as they came out when the evidence was gathered
<suite>/            `items.jsonl`, `champion.jsonl`, `candidate.jsonl`: a line for each item; of a judged suite
                    `pairs.jsonl`: a line for each pair, without texts
"""

import importlib.metadata
import json
import platform
import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from evals import comparison, gate, win_rate
from evals.gate import GateVerdict
from evals.records import NOT_ENTERED, BundleRef, EvalArm, EvalReport, ItemResult, Trial
from evals.suites import Item, Suite
from evals.win_rate import JudgedEvidence, JudgedPair
from pipeline.core import layout
from pipeline.core.locations import Document
from pipeline.core.removal import Removal
from pipeline.core.storage import ModelRef, Record, Store, digest_file, digest_json
from pipeline.recipe import Evaluation

MANIFEST, PROVENANCE, MEASUREMENT = "manifest.json", "provenance.json", "measurement.json"
ITEMS, PAIRS, ARMS = "items.jsonl", "pairs.jsonl", ("champion.jsonl", "candidate.jsonl")
PACKAGES = ("math-verify", "numpy", "pydantic", "scipy")
IN_FILES = {
    "suites": {"__all__": {"suite": {"items"}, "arms": {"__all__": {"results"}}}},
    "judged": {"__all__": {"pairs"}},
}
"""What has a file of its own beside `provenance.json`."""

R = TypeVar("R", bound=Record)


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in PACKAGES}}


class SuiteEvidence(Record):
    """Two finished runs over one suite, champion first."""

    suite: Suite
    arms: tuple[EvalArm, EvalArm]


class EvalEvidence(Record):
    """A bundle in memory: who was compared, and what was asked of both models and of a judge. `problems`: why that is
    not all that the plan wants."""

    iteration: str
    section: Evaluation
    champion: ModelRef
    candidate: ModelRef
    trial: Trial = NOT_ENTERED
    suites: tuple[SuiteEvidence, ...] = ()
    judged: tuple[JudgedEvidence, ...] = ()
    problems: tuple[str, ...] = ()
    not_asked: dict[str, str] = Field(default={})
    """The suites that the iteration does not ask, with the reasons."""
    versions: dict[str, str] = Field(default_factory=_versions)


def report(evidence: EvalEvidence, ref: BundleRef) -> EvalReport:
    """What the gate reads: for each suite the comparison or win rates that this evidence carries, or why it carries
    none."""
    section = evidence.section
    asked = {each.suite.name: each for each in evidence.suites}
    over = {each.name: asked.get(each.over) for each in section.judged}
    return EvalReport(
        iteration=evidence.iteration,
        champion=evidence.champion,
        candidate=evidence.candidate,
        protocol=digest_json([each.arms[1].protocol.digest() for each in evidence.suites]),
        section=section,
        problems=evidence.problems,
        measurements=tuple(
            comparison.measure(each.suite, each.arms, section, evidence.trial) for each in evidence.suites
        ),
        bundle=ref,
        trial=evidence.trial,
        unchanged=_unchanged(evidence.suites),
        not_asked=evidence.not_asked,
        judged=tuple(
            win_rate.measure(each, answered.suite, answered.arms, section, evidence.trial)
            for each in evidence.judged
            if (answered := over[each.suite]) is not None
        ),
    )


def _unchanged(suites: Collection[SuiteEvidence]) -> int:
    before, after = (
        {(each.suite.name, result.id): result.samples for each in suites for result in each.arms[arm].results}
        for arm in (0, 1)
    )
    return sum(map(len, after.values())) if before == after else 0


def publish(store: Store, name: str, evidence: EvalEvidence) -> None:
    """Write the bundle under `name` in one step; a bundle that is already there stands."""
    with store.staged(name) as folder:
        for each in evidence.suites:
            _write_lines(folder / each.suite.name / ITEMS, each.suite.items)
            for file, arm in zip(ARMS, each.arms, strict=True):
                _write_lines(folder / each.suite.name / file, arm.results)
        for judged in evidence.judged:
            _write_lines(folder / judged.suite / PAIRS, judged.pairs)
        # References are relative, and so the bundle's digest is the same wherever the data root lies.
        provenance = Document(folder / PROVENANCE, store.root)
        provenance.path.write_text(
            _text(evidence.model_dump(mode="json", exclude=IN_FILES, context=provenance)), encoding="utf-8"
        )
        (folder / MEASUREMENT).write_text(_numbers(report(evidence, BundleRef(uri="", digest=""))), encoding="utf-8")
        (folder / MANIFEST).write_text(manifest(folder), encoding="utf-8")


def read(path: Path) -> EvalEvidence:
    """A bundle's content. Raises ValueError where a file is missing, added or altered."""
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} has no {MANIFEST}. Give the directory of an evidence bundle.")
    if (path / MANIFEST).read_bytes() != manifest(path).encode():
        raise ValueError(f"{path}: a file does not match its digest. Fetch the bundle again; do not edit it.")
    try:
        outline = (path / PROVENANCE).read_bytes()
        evidence = EvalEvidence.model_validate_json(outline, context=Document((path / PROVENANCE).absolute()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path / PROVENANCE} cannot be read ({error}). Fetch the bundle again.") from error
    suites: list[SuiteEvidence] = []
    for each in evidence.suites:
        below = path / each.suite.name
        suite = each.suite.model_copy(update={"items": _read_lines(below / ITEMS, Item)})
        champion, candidate = (
            arm.model_copy(update={"results": _read_lines(below / file, ItemResult)})
            for file, arm in zip(ARMS, each.arms, strict=True)
        )
        suites.append(SuiteEvidence(suite=suite, arms=(champion, candidate)))
    judged = (
        each.model_copy(update={"pairs": _read_lines(path / each.suite / PAIRS, JudgedPair)})
        for each in evidence.judged
    )
    return evidence.model_copy(update={"suites": tuple(suites), "judged": tuple(judged)})


def recompute(path: Path) -> EvalReport:
    """The report that a bundle supports, recomputed from its outcomes.

    Raises ValueError as `read`, and where the recorded numbers do not come out again to the bit.
    """
    evidence = read(path)
    recomputed = report(evidence, BundleRef(uri=str(path), digest=digest_file(path / MANIFEST)))
    if _numbers(recomputed) != (path / MEASUREMENT).read_text(encoding="utf-8"):
        versions = ", ".join(f"{name} {version}" for name, version in evidence.versions.items())
        raise ValueError(
            f"{path}: the outcomes do not give the recorded numbers again. Verify with the recorded versions "
            f"({versions}); if they still differ, discard this bundle."
        )
    return recomputed


def verify(path: str | Path, digest: str = "") -> GateVerdict:
    """Recompute the verdict of a bundle offline.

    Raises ValueError when the bundle was altered or, where a `digest` is given, when it is another bundle.
    """
    recomputed = recompute(Path(path))
    if digest and recomputed.bundle.digest != digest:
        raise ValueError(
            f"{path} has the digest {recomputed.bundle.digest}, not {digest}. Take the bundle that was judged."
        )
    return gate.judge(recomputed, recomputed.section)


def items_of(path: Path, principals: Collection[str]) -> set[str]:
    """Ids of the bundle's items that are these principals'."""
    items = (item for file in path.glob(f"*/{ITEMS}") for item in _read_lines(file, Item))
    return {item.id for item in items if item.user_id in principals}


def removals(store: Store, path: Path, principals: Collection[str]) -> Iterator[Removal]:
    """The whole bundle where items of it are these principals'; also its report while no verdict was made of it."""
    if items := items_of(path, principals):
        yield Removal(str(path.relative_to(store.root)), len(items), partial(_remove, path))


def _remove(path: Path) -> None:
    if not path.with_name(layout.GATE_VERDICT).exists():
        path.with_name(layout.EVAL_REPORT).unlink(missing_ok=True)
    gone = path.with_name(f".{path.name}.gone")  # of which the next sweep deletes what a kill leaves
    path.rename(gone)
    shutil.rmtree(gone)


def manifest(path: Path) -> str:
    """The digest of each file of the bundle but this one."""
    files = sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())
    return _text({name: digest_file(path / name) for name in files if name != MANIFEST})


def _numbers(measured: EvalReport) -> str:
    return _text(measured.model_dump(mode="json", include={"measurements", "judged"}))


def _text(plain: dict[str, Any]) -> str:
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write_lines(path: Path, records: tuple[Record, ...]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(record.model_dump_json() + "\n" for record in records), encoding="utf-8")


def _read_lines(path: Path, kind: type[R]) -> tuple[R, ...]:
    try:
        return tuple(kind.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not one {kind.__name__} a line ({error}). Fetch the bundle again.") from error
