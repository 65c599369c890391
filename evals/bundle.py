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
from typing import NamedTuple, TypeVar

from evals import comparison, gate, win_rate
from evals.gate import GateVerdict
from evals.records import BundleRef, EvalArm, EvalReport, ItemResult, JudgedMeasurement, Protocol, SuiteMeasurement
from evals.suites import Item, Suite
from evals.win_rate import JudgedEvidence, JudgedPair
from pipeline.core import layout
from pipeline.core.locations import Document
from pipeline.core.removal import Removal
from pipeline.core.storage import ModelRef, Record, Store, digest_file, digest_json
from pipeline.recipe import Evaluation

MANIFEST, PROVENANCE, MEASUREMENT = "manifest.json", "provenance.json", "measurement.json"
ITEMS, PAIRS, ARMS = "items.jsonl", "pairs.jsonl", ("champion.jsonl", "candidate.jsonl")
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

    `problems` are those of the evidence as a whole; `judged` is without the pairs, which have a file.
    """

    iteration: str
    section: Evaluation
    champion: ModelRef
    candidate: ModelRef
    suites: tuple[SuiteProvenance, ...]
    judged: tuple[JudgedEvidence, ...]
    problems: tuple[str, ...]
    versions: dict[str, str]


class Measurements(Record):
    suites: tuple[SuiteMeasurement, ...]
    judged: tuple[JudgedMeasurement, ...]


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
        judged=tuple(each.model_copy(update={"pairs": ()}) for each in gathered.judged),
        problems=gathered.problems,
        versions={"python": platform.python_version(), **{p: importlib.metadata.version(p) for p in _PACKAGES}},
    )
    return EvalEvidence(provenance=provenance, suites=gathered.suites, judged=gathered.judged)


def measure(eval_evidence: EvalEvidence) -> Measurements:
    """For each suite the comparison or win rates that this evidence carries, or why it carries none."""
    section = eval_evidence.provenance.section
    measured: list[SuiteMeasurement] = []
    for each in eval_evidence.suites:
        settings = section.suite(each.suite.name)
        problems = comparison.problems(each.suite, each.arms, section, settings)
        compared = None if problems else comparison.compare(each.suite, each.arms, section, settings)
        measured.append(SuiteMeasurement(suite=each.suite.name, problems=tuple(problems), comparison=compared))
    asked = {each.suite.name: each for each in eval_evidence.suites}
    over = {each.name: each.over for each in section.judged}
    judged = (
        win_rate.measure(each, asked[over[each.suite]].suite, asked[over[each.suite]].arms, section)
        for each in eval_evidence.judged
    )
    return Measurements(suites=tuple(measured), judged=tuple(judged))


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
        judged=measured.judged,
    )


def publish(store: Store, name: str, eval_evidence: EvalEvidence) -> None:
    """Write the bundle under `name` in one step; a bundle that is already there stands."""
    with store.staged(name) as folder:
        for each in eval_evidence.suites:
            _write_lines(folder / each.suite.name / ITEMS, each.suite.items)
            for file, arm in zip(ARMS, each.arms, strict=True):
                _write_lines(folder / each.suite.name / file, arm.results)
        for judged in eval_evidence.judged:
            _write_lines(folder / judged.suite / PAIRS, judged.pairs)
        # References are relative, and so the bundle's digest is the same wherever the data root lies.
        provenance = Document(folder / PROVENANCE, store.root)
        provenance.path.write_text(_text(eval_evidence.provenance, provenance))
        (folder / MEASUREMENT).write_text(_text(measure(eval_evidence)))
        files = {name: digest_file(folder / name) for name in sorted(_present(folder))}
        (folder / MANIFEST).write_text(_text(BundleManifest(files=files)))


def read(path: Path) -> EvalEvidence:
    """A bundle's content. Raises ValueError where a file is missing, added or altered."""
    _check_files(path)
    provenance = _read(path / PROVENANCE, Provenance)
    models = provenance.champion, provenance.candidate
    suites: list[SuiteEvidence] = []
    for each in provenance.suites:
        below = path / each.name
        suite = Suite(
            name=each.name, system=each.system, instruction=each.instruction, items=_read_lines(below / ITEMS, Item)
        )
        champion, candidate = (
            EvalArm(model=model, protocol=protocol, results=_read_lines(below / file, ItemResult))
            for model, protocol, file in zip(models, (each.champion, each.candidate), ARMS, strict=True)
        )
        suites.append(SuiteEvidence(suite=suite, arms=(champion, candidate)))
    judged = tuple(
        each.model_copy(update={"pairs": _read_lines(path / each.suite / PAIRS, JudgedPair)})
        for each in provenance.judged
    )
    return EvalEvidence(provenance=provenance, suites=tuple(suites), judged=judged)


def recompute(path: Path) -> EvalReport:
    """The report that a bundle supports, recomputed from its outcomes.

    Raises ValueError as `read`, and where the recorded numbers do not come out again to the bit.
    """
    eval_evidence = read(path)
    measured = measure(eval_evidence)
    if _text(measured) != (path / MEASUREMENT).read_text():
        versions = ", ".join(f"{name} {version}" for name, version in eval_evidence.provenance.versions.items())
        raise ValueError(
            f"{path}: the outcomes do not give the recorded numbers again. Verify with the recorded versions "
            f"({versions}); if they still differ, discard this bundle."
        )
    return report(eval_evidence, measured, BundleRef(uri=str(path), digest=digest_file(path / MANIFEST)))


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


def _present(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}


def _check_files(path: Path) -> None:
    if not (path / MANIFEST).is_file():
        raise ValueError(f"{path} has no {MANIFEST}. Give the directory of an evidence bundle.")
    manifest = _read(path / MANIFEST, BundleManifest)
    if _text(manifest).encode() != (path / MANIFEST).read_bytes():
        raise ValueError(f"{path / MANIFEST} was altered. Fetch the bundle again from where it was published.")
    if (present := _present(path)) != manifest.files.keys():
        raise ValueError(f"{path} holds {sorted(present)} and lists {sorted(manifest.files)}. Fetch the bundle again.")
    for name, digest in manifest.files.items():
        if digest_file(path / name) != digest:
            raise ValueError(f"{path / name} does not match its digest. Fetch the bundle again; do not edit it.")


def _text(record: Record, document: Document | None = None) -> str:
    plain = record.model_dump(mode="json", context=document)
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write_lines(path: Path, records: tuple[Record, ...]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))


def _read(path: Path, kind: type[R]) -> R:
    try:
        return kind.model_validate_json(path.read_bytes(), context=Document(path.absolute()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a {kind.__name__} ({error}). Fetch the bundle again.") from error


def _read_lines(path: Path, kind: type[R]) -> tuple[R, ...]:
    try:
        return tuple(kind.model_validate_json(line) for line in path.read_bytes().split(b"\n") if line)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not one {kind.__name__} a line ({error}). Fetch the bundle again.") from error
