"""Evidence without what is left of erased lines: where even the counts of a forgotten person's answers must go.

The bundle is written anew without the lines, its numbers are computed anew, and report and verdict follow: the verdict
is EVIDENCE_REDUCED, whatever it was. The new bundle stands beside the old one before it takes its place, and a kill at
any point is healed by `restore`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from evals import bundle, gate
from evals.bundle import EvalEvidence, SuiteEvidence
from evals.gate import GateVerdict
from evals.judged_evidence import JudgedEvidence
from pipeline.core import layout
from pipeline.core.removal import Removal
from pipeline.core.storage import Store

REDUCED, REPLACED = f".{layout.EVIDENCE}.reduced", f".{layout.EVIDENCE}.replaced"


def removals(store: Store, path: Path, ids: Collection[str]) -> Iterator[Removal]:
    """The lines of these items, and those that were erased before, which go with their counts.

    Raises ValueError where the bundle is not whole.
    """
    whole = bundle.read(path)
    erased = {item.id for each in whole.suites for item in each.suite.items if item.leaf or item.id in ids}
    if erased:
        rows = sum(item.id in erased for each in whole.suites for item in each.suite.items)
        yield Removal(str(path.relative_to(store.root)), rows, partial(_reduce, store, path, _without(whole, erased)))


def _reduce(store: Store, path: Path, left: EvalEvidence) -> None:
    draft = path.with_name(REDUCED)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    bundle.write(draft, store.root, left)
    path.rename(path.with_name(REPLACED))
    restore(path)
    settle(store, path)


def restore(path: Path) -> None:
    """Put the new bundle into the place of the old one, where a kill came between, and drop the old one."""
    draft, old = path.with_name(REDUCED), path.with_name(REPLACED)
    if not path.exists() and old.is_dir():
        draft.rename(path)
    for each in (draft, old):
        shutil.rmtree(each, ignore_errors=True)


def settle(store: Store, path: Path) -> None:
    """Publish the report and the verdict that a reduced bundle carries, where they are still those of before."""
    folder = path.parent.relative_to(store.root)
    names = f"{folder}/{layout.EVAL_REPORT}", f"{folder}/{layout.GATE_VERDICT}"
    verdict = store.read(names[1], GateVerdict)
    digest = bundle.manifest_digest(path)
    if verdict is None or verdict.bundle_digest == digest:
        return
    report = bundle.recompute(path)
    if report.reduced:
        store.write(names[0], report)
        store.write(names[1], gate.judge(report, report.section))


def _without(whole: EvalEvidence, erased: set[str]) -> EvalEvidence:
    suites = tuple(_suite(each, erased) for each in whole.suites)
    described = tuple(
        description.model_copy(update={"champion": each.arms[0].protocol, "candidate": each.arms[1].protocol})
        for description, each in zip(whole.provenance.suites, suites, strict=True)
    )
    reduced = whole.provenance.reduced + len(erased)
    return EvalEvidence(
        provenance=whole.provenance.model_copy(update={"suites": described, "reduced": reduced}),
        suites=suites,
        judged=tuple(
            JudgedEvidence(
                provenance=each.provenance, pairs=tuple(pair for pair in each.pairs if pair.item not in erased)
            )
            for each in whole.judged
        ),
    )


def _suite(evidence: SuiteEvidence, erased: set[str]) -> SuiteEvidence:
    """The protocols then name the items that are left: both models answered these, among others."""
    items = tuple(item for item in evidence.suite.items if item.id not in erased)
    suite = evidence.suite.model_copy(update={"items": items})
    champion, candidate = (
        arm.model_copy(
            update={
                "protocol": arm.protocol.model_copy(update={"suite_digest": suite.digest()}),
                "results": tuple(result for result in arm.results if result.id not in erased),
            }
        )
        for arm in evidence.arms
    )
    return SuiteEvidence(suite=suite, arms=(champion, candidate))
