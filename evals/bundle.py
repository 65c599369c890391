"""The evidence bundle: everything that a verdict rests on, in one directory that can be carried away and checked.

    manifest.json       digest of every other file (of lines: evals/erasable.py); its own sha256 is the bundle's digest
    provenance.json     who was compared, under which section of the recipe, protocols and versions
    measurement.json    the numbers, as they came out when the evidence was gathered
    <suite>/            of each suite `items.jsonl`, `champion.jsonl`, `candidate.jsonl`: a line for each item; of a
                        judged one what evals/judged_evidence.py says

Owns its files, their digests and the offline recomputation, also where lines were erased since. Refuses to decide: the
rule is the gate's.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field

from evals import comparable, erasable, gate, judged_evidence
from evals.comparison import compare
from evals.gate import GateVerdict
from evals.judged_evidence import JudgedEvidence
from evals.measurements import BundleRef, EvalReport, JudgedMeasurement, SuiteMeasurement
from evals.results import EvalArm, Protocol
from evals.suites import Suite
from pipeline.core.locations import Document
from pipeline.core.removal import Removal
from pipeline.core.storage import ModelRef, Record, Store, digest_file, digest_json
from pipeline.recipe import Evaluation

MANIFEST, PROVENANCE, MEASUREMENT = "manifest.json", "provenance.json", "measurement.json"
SUITE_FILES = (erasable.ITEMS, "champion.jsonl", "candidate.jsonl")
_PACKAGES = ("math-verify", "numpy", "pydantic", "scipy")

R = TypeVar("R", bound=Record)


class SuiteProvenance(Record):
    """What a suite's files do not say of themselves."""

    name: str
    system: str
    instruction: str
    champion: Protocol
    candidate: Protocol


class Provenance(Record):
    """Who was compared, under which protocols, seeds and thresholds, and with which versions.

    `problems` are those of the evidence as a whole, such as a suite that is not the one that training was kept from.
    """

    iteration: str
    section: Evaluation
    champion: ModelRef
    candidate: ModelRef
    suites: tuple[SuiteProvenance, ...]
    problems: tuple[str, ...]
    versions: dict[str, str]
    reduced: int = Field(default=0, exclude_if=lambda items: items == 0)
    """Items that were taken out with their counts, because whose they were is forgotten (evals/reduction.py)."""


class Measurements(Record):
    suites: tuple[SuiteMeasurement, ...]


class BundleManifest(Record):
    """Digest of each file of the bundle but this one."""

    files: dict[str, str]


class SuiteEvidence(Record):
    """Two finished runs over one suite, champion first."""

    suite: Suite
    arms: tuple[EvalArm, EvalArm]


class Gathered(NamedTuple):
    """What was asked of the models and of a judge, and why it was not all that the plan wants."""

    suites: tuple[SuiteEvidence, ...] = ()
    judged: tuple[JudgedEvidence, ...] = ()
    problems: tuple[str, ...] = ()


class EvalEvidence(Record):
    """A bundle in memory."""

    provenance: Provenance
    suites: tuple[SuiteEvidence, ...]
    judged: tuple[JudgedEvidence, ...] = ()


def evidence(
    iteration: str,
    section: Evaluation,
    gathered: Gathered,
    models: tuple[ModelRef, ModelRef] | None = None,
) -> EvalEvidence:
    """Finished runs with what was known about them when they finished. `models`, champion first: where nothing ran."""
    champion, candidate = models or (arm.model for arm in gathered.suites[0].arms)
    provenance = Provenance(
        iteration=iteration,
        section=section,
        champion=champion,
        candidate=candidate,
        suites=tuple(
            SuiteProvenance(
                name=each.suite.name,
                system=each.suite.system,
                instruction=each.suite.instruction,
                champion=each.arms[0].protocol,
                candidate=each.arms[1].protocol,
            )
            for each in gathered.suites
        ),
        problems=gathered.problems,
        versions={"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in _PACKAGES}},
    )
    return EvalEvidence(provenance=provenance, suites=gathered.suites, judged=gathered.judged)


def measure(eval_evidence: EvalEvidence) -> Measurements:
    """For each suite the comparison that this evidence carries, or why it carries none."""
    section = eval_evidence.provenance.section
    measured: list[SuiteMeasurement] = []
    for each in eval_evidence.suites:
        settings = section.suite(each.suite.name)
        problems = comparable.problems(each.suite, each.arms, section, settings)
        comparison = None if problems else compare(each.suite, each.arms, section, settings)
        measured.append(
            SuiteMeasurement(
                suite=each.suite.name,
                problems=tuple(problems),
                comparison=comparison,
            )
        )
    return Measurements(suites=tuple(measured))


def measure_judged(eval_evidence: EvalEvidence) -> tuple[JudgedMeasurement, ...]:
    """For each judged suite its win rates, or why there are none."""
    section = eval_evidence.provenance.section
    asked = {each.suite.name: each for each in eval_evidence.suites}
    over = [asked[each.over] for each in section.judged if _has_judged(section, asked)]
    return tuple(
        judged_evidence.measure(each, answers.suite, answers.arms, section, eval_evidence.provenance.reduced > 0)
        for each, answers in zip(eval_evidence.judged, over, strict=True)
    )


def report(eval_evidence: EvalEvidence, measured: Measurements, ref: BundleRef) -> EvalReport:
    """What the gate reads."""
    provenance = eval_evidence.provenance
    return EvalReport(
        iteration=provenance.iteration,
        champion=provenance.champion,
        candidate=provenance.candidate,
        protocol=digest_json([each.candidate.digest() for each in provenance.suites]),
        section=provenance.section,
        problems=provenance.problems,
        measurements=measured.suites,
        bundle=ref,
        judged=measure_judged(eval_evidence),
        reduced=provenance.reduced,
    )


def publish(store: Store, name: str, eval_evidence: EvalEvidence) -> None:
    """Write the bundle under `name` in one step; a bundle that is already there stands."""
    with store.staged(name) as folder:
        write(folder, store.root, eval_evidence)


def write(folder: Path, root: Path, eval_evidence: EvalEvidence) -> None:
    """A bundle's files into an empty folder below the data root."""
    for each in eval_evidence.suites:
        below = folder / each.suite.name
        below.mkdir()
        contents = (each.suite.items, *(arm.results for arm in each.arms))
        for file, records in zip(SUITE_FILES, contents, strict=True):
            _write_lines(below / file, records)
    for judged, numbers in zip(eval_evidence.judged, measure_judged(eval_evidence), strict=True):
        judged_evidence.write(folder, judged, numbers)
    # References are relative, and so the bundle's digest is the same wherever the data root lies.
    provenance = Document(folder / PROVENANCE, root)
    provenance.path.write_text(_text(eval_evidence.provenance, provenance))
    (folder / MEASUREMENT).write_text(_text(measure(eval_evidence)))
    files = {name: _digest(folder / name) for name in _files(eval_evidence.provenance)}
    (folder / MANIFEST).write_text(_text(BundleManifest(files=files)))


def read(path: Path) -> EvalEvidence:
    """A bundle's content, once every file matches the manifest. Raises ValueError where one does not."""
    _check_files(path)
    provenance = _read(path / PROVENANCE, Provenance)
    suites: list[SuiteEvidence] = []
    for each in provenance.suites:
        items, *results = (path / each.name / file for file in SUITE_FILES)
        suite = Suite(
            name=each.name,
            system=each.system,
            instruction=each.instruction,
            items=erasable.items(items),
        )
        models = (provenance.champion, each.champion), (provenance.candidate, each.candidate)
        champion, candidate = (
            EvalArm(model=model, protocol=protocol, results=erasable.results(file))
            for (model, protocol), file in zip(models, results, strict=True)
        )
        suites.append(SuiteEvidence(suite=suite, arms=(champion, candidate)))
    has_judged = _has_judged(provenance.section, [each.suite.name for each in suites])
    judged = judged_evidence.read(path, provenance.section) if has_judged else ()
    return EvalEvidence(provenance=provenance, suites=tuple(suites), judged=judged)


def recompute(path: Path) -> EvalReport:
    """The report that a bundle supports, recomputed from its per-item outcomes.

    Raises ValueError when a file is missing, added or altered, or when the numbers recorded with the evidence do not
    come out again to the bit.
    """
    eval_evidence = read(path)
    measured = measure(eval_evidence)
    supported = report(eval_evidence, measured, BundleRef(uri=str(path), digest=digest_file(path / MANIFEST)))
    if _text(measured) != (path / MEASUREMENT).read_text() or not judged_evidence.recorded(path, supported.judged):
        versions = ", ".join(f"{name} {version}" for name, version in eval_evidence.provenance.versions.items())
        raise ValueError(
            f"{path}: the outcomes do not give the recorded numbers again. Verify with the recorded versions "
            f"({versions}); if they still differ, discard this bundle."
        )
    return supported


def manifest_digest(path: Path) -> str:
    """The digest of the bundle."""
    return digest_file(path / MANIFEST)


def items_of(path: Path, principals: Collection[str]) -> set[str]:
    """The items of a bundle that are these principals', and not erased."""
    every = (item for file in path.glob(f"*/{erasable.ITEMS}") for item in erasable.items(file))
    return {item.id for item in every if item.user_id in principals}


def removals(store: Store, path: Path, items: Collection[str]) -> Iterator[Removal]:
    """The lines of these items, which are erased: digest and verdict stay. A suite's items go last: after a kill they
    still tell whose the answers are."""
    for folder in sorted(file.parent for file in path.glob(f"*/{erasable.ITEMS}")):
        for file in (folder / name for name in reversed(SUITE_FILES)):
            if file.exists() and (lines := erasable.to_erase(file, items)):
                yield Removal(str(file.relative_to(store.root)), lines, partial(erasable.erase, file, items))


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


def _files(provenance: Provenance) -> list[str]:
    """Names of every file of a bundle but the manifest."""
    has_judged = _has_judged(provenance.section, [each.name for each in provenance.suites])
    of_suites = (f"{each.name}/{file}" for each in provenance.suites for file in SUITE_FILES)
    return [
        MEASUREMENT,
        PROVENANCE,
        *of_suites,
        *(judged_evidence.files(provenance.section) if has_judged else ()),
    ]


def _has_judged(section: Evaluation, asked: Collection[str]) -> bool:
    """Whether the suites that are judged were asked: nothing is where nobody was asked."""
    return {each.over for each in section.judged} <= {*asked}


def _check_files(path: Path) -> None:
    """Raises ValueError unless every file is there, no other is, and each matches the manifest."""
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} has no {MANIFEST}. Give the directory of an evidence bundle.")
    manifest = _read(path / MANIFEST, BundleManifest)
    if _text(manifest).encode() != (path / MANIFEST).read_bytes():
        raise ValueError(f"{path / MANIFEST} was altered. Fetch the bundle again from where it was published.")
    present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}
    if present != manifest.files.keys():
        raise ValueError(f"{path} holds {sorted(present)} and lists {sorted(manifest.files)}. Fetch the bundle again.")
    for name, digest in manifest.files.items():
        if _digest(path / name) != digest:
            raise ValueError(f"{path / name} does not match its digest. Fetch the bundle again; do not edit it.")
    if present != set(_files(_read(path / PROVENANCE, Provenance))):
        raise ValueError(f"{path} holds files of other suites than its {PROVENANCE} names. Fetch the bundle again.")


def _digest(path: Path) -> str:
    return erasable.digest(path) if path.name in SUITE_FILES else digest_file(path)


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
