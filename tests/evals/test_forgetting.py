"""Forgetting somebody whose questions a gate has asked: no byte of them is left, and the evidence still stands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from evals import bundle, reduction
from evals import erasure as evaluations
from evals.gate import GateVerdict, Verdict
from evals.measurements import EvalReport
from evals.page import changed, page
from evals.suites import Suite, frozen, suites
from pipeline.core.removal import make
from pipeline.core.storage import Store, digest_file
from pipeline.governance import erasure
from pipeline.governance.erasure.owner import Person
from pipeline.governance.erasure.proof import ErasureProof
from pipeline.serving import journal
from pipeline.traces.context import IterationContext
from tests.contexts import context_of, stage_context
from tests.evals.people import DAYS, USERS, People, asked, later, section_of
from tests.pipeline.governance.erasure.conftest import NAME, NOW, secret
from tests.pipeline.governance.erasure.looking import holding
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

SECTION = section_of()


class Gated(NamedTuple):
    """A deployment whose gate asked what people asked, and one of them."""

    people: People
    work: IterationContext
    suite: Suite
    verdict: GateVerdict
    user: str

    @property
    def bundle(self) -> Path:
        return self.people.store.path(self.work.path("evidence"))

    def words(self) -> tuple[str, ...]:
        return self.user, secret(self.user), f"trace-{self.user[5:8]}-"

    def forget(self, erase_counts: bool = False) -> ErasureProof:
        return erasure.forget(
            stage_context(self.people.store, self.people.lake, name=NAME),
            Person.named(self.user),
            registry_uri=self.people.tracking_uri,
            now=NOW,
            keepers=(partial(evaluations.places, erase_counts=erase_counts),),
        )


def removed(store: Store, users: set[str], erase_counts: bool = False) -> None:
    for place in evaluations.places(store, users, erase_counts):
        place.remove()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Gated:
    people = People(tmp_path_factory.mktemp("people") / "data")
    work = people.window(DAYS[0], [each for user in USERS for each in asked(user, DAYS[0])], SECTION)
    _, (suite,) = people.select(work)
    verdict = people.gate(work)
    return Gated(people, work, suite, verdict, str(suite.items[0].user_id))


@pytest.fixture
def gated(made: Gated, tmp_path: Path) -> Gated:
    """The deployment, at another place."""
    root = Path(shutil.copytree(made.people.root, tmp_path / "data"))
    people = People(root)
    work = context_of(people.store, made.work.iteration, people.lake, evaluation=SECTION)
    return made._replace(people=people, work=work)


def test_no_byte_is_left_and_the_verdict_stands(gated: Gated) -> None:
    root = gated.people.root
    before = holding(root, *gated.words())
    evidence = gated.work.path("evidence/production")
    assert {f"{evidence}/{name}" for name in bundle.SUITE_FILES} <= before
    assert sum(name.startswith("evaluation/answers/") for name in before) == 2
    assert "evaluation/suites/production/0001/items.jsonl" in before
    assert gated.verdict.verdict is Verdict.PASS
    salt, digest = gated.suite.items[0].salt, digest_file(gated.bundle / "manifest.json")
    proof = gated.forget()
    assert holding(root, *gated.words(), salt) == set()
    assert proof.remains == ()
    assert proof.places["evidence bundles"] == {f"{evidence}/{name}": 1 for name in sorted(bundle.SUITE_FILES)}
    assert proof.places["frozen suites"] == {"evaluation/suites/production/0001/items.jsonl": 1}
    assert bundle.verify(gated.bundle, gated.verdict.bundle_digest) == gated.verdict
    assert digest_file(gated.bundle / "manifest.json") == digest
    left = {json.loads(line)["id"]: json.loads(line) for line in (gated.bundle / "production/items.jsonl").open()}
    assert len(left) == len(gated.suite.items)
    erased = left.pop(gated.suite.items[0].id)
    assert erased.keys() == {"erased", "id", "cluster", "slice", "leaf"}
    assert not [each for each in left.values() if "erased" in each]
    evidence = bundle.read(gated.bundle)
    shown = page(evidence, bundle.recompute(gated.bundle), gated.verdict)
    _, won = changed(evidence.suites[0])  # an item's salt draws its answers: which ones change differs in every run
    assert secret(gated.user) not in shown and secret(str(won[0].item.user_id)) in shown
    assert gated.forget().places == {}, "twice is once"


def test_the_next_gate_asks_a_smaller_suite(gated: Gated) -> None:
    (before,) = suites(gated.people.store, SECTION)
    gated.forget()
    (after,) = suites(gated.people.store, SECTION)
    assert [item.id for item in after.items] == [item.id for item in before.items[1:]]
    assert after.digest() != before.digest()
    rows = [each for user in USERS if user != gated.user for each in asked(user, DAYS[1])]
    work = gated.people.window(DAYS[1], rows, SECTION)
    gated.people.select(work, later(1))
    verdict = gated.people.gate(work)
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    protocol = bundle.read(gated.people.store.path(work.path("evidence"))).provenance.suites[0].champion
    assert protocol.suite_digest == after.digest()


def test_a_gate_under_way_goes_on_with_the_items_that_are_left(made: Gated, tmp_path: Path) -> None:
    people = People(tmp_path / "data")
    work = people.window(DAYS[0], [each for user in USERS for each in asked(user, DAYS[0])], SECTION)
    _, (suite,) = people.select(work)
    gated = Gated(people, work, suite, made.verdict, str(suite.items[0].user_id))
    gated.forget()
    verdict = people.gate(work)
    assert verdict.verdict is Verdict.PASS, "what was pinned is the generation, and training was cleaned of all of it"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("items.jsonl", '"slice":"math"', '"slice":"meth"'),
        ("items.jsonl", '"cluster":"', '"cluster":"0'),
        ("candidate.jsonl", '"right":', '"right":1'),
        ("champion.jsonl", '"leaf":"', '"leaf":"0'),
    ],
)
def test_what_is_left_of_a_line_cannot_be_changed(gated: Gated, name: str, old: str, new: str) -> None:
    gated.forget()
    path = gated.bundle / "production" / name
    lines = path.read_text().splitlines(keepends=True)
    assert lines[0].startswith('{"erased":true') and old in lines[0]
    path.write_text("".join([lines[0].replace(old, new, 1), *lines[1:]]))
    with pytest.raises(ValueError, match="does not match its digest"):
        bundle.verify(gated.bundle)


@pytest.mark.parametrize(
    "spoil", [lambda text: text + "\n", lambda text: text[:-1], lambda text: text.replace("erased", "e")]
)
def test_a_file_of_other_lines_is_refused(gated: Gated, spoil) -> None:
    gated.forget()
    path = gated.bundle / "production" / "champion.jsonl"
    path.write_text(spoil(path.read_text()))
    with pytest.raises(ValueError, match="Fetch the bundle again"):
        bundle.verify(gated.bundle)


def test_others_are_left_alone(gated: Gated) -> None:
    before = {path: path.read_bytes() for path in gated.people.root.rglob("*") if path.is_file()}
    removed(gated.people.store, {"nobody@example.com", "user-zzz-9999"})
    assert {path: path.read_bytes() for path in gated.people.root.rglob("*") if path.is_file()} == before
    removed(gated.people.store, {gated.user})
    other = str(gated.suite.items[1].user_id)
    kept = holding(gated.people.root, secret(other))
    assert {gated.work.path(f"evidence/production/{name}") for name in bundle.SUITE_FILES} <= kept
    assert sum(name.startswith("evaluation/answers/") for name in kept) == 2


class Crash(BaseException):
    """No handler of ours catches it, as none outlives a kill."""


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_crash_between_any_two_rewrites_is_healed(
    gated: Gated, monkeypatch: pytest.MonkeyPatch, withdrawn: bool
) -> None:
    """One attempt after the other, each of which dies at its second write and leaves a torn copy. `withdrawn`: the item
    has left suite and journals before, and the bundle alone can tell whose it is."""
    store, calls, crashes = gated.people.store, 0, 0
    if withdrawn:
        make(journal.removals(store, {gated.suite.items[0].id}))
        make(frozen.removals(store, {gated.suite.items[0].id}))
    whole = Path.replace

    def frail(path: Path, target: Path) -> Path:
        nonlocal calls, crashes
        calls += 1
        if calls == 2:
            target.with_name(f".{target.name}.0f").write_bytes(target.read_bytes())
            crashes += 1
            raise Crash
        return whole(path, target)

    monkeypatch.setattr(Path, "replace", frail)
    while True:
        calls = 0
        try:
            removed(store, {gated.user})
            break
        except Crash:
            continue
    assert crashes == (2 if withdrawn else 5), "three files of the bundle; two journals and a frozen suite"
    assert holding(store.root / "evaluation", *gated.words()) == set()
    assert holding(gated.bundle, *gated.words()) == set()
    assert bundle.verify(gated.bundle, gated.verdict.bundle_digest) == gated.verdict


@pytest.mark.parametrize("writes", one_and_variants(range(6), 1, 4))
def test_a_kill_between_the_rewrites_is_healed(gated: Gated, writes: int) -> None:
    code = f"""
        import os, signal, sys
        from pathlib import Path
        replace, left = Path.replace, {writes}
        def frail(self, target):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return replace(self, target)
        Path.replace = frail
        from evals import erasure
        from pipeline.core.storage import Store
        for place in erasure.places(Store(sys.argv[1]), {{sys.argv[2]}}):
            place.remove()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(gated.people.root), gated.user]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == -9, done.stderr
    proof = gated.forget()
    assert proof.remains == ()
    assert holding(gated.people.root, *gated.words()) == set()
    assert bundle.verify(gated.bundle, gated.verdict.bundle_digest) == gated.verdict


def test_staged_evidence_of_a_killed_gate_goes_too(gated: Gated) -> None:
    staged = gated.bundle.with_name(".evidence.0f")
    shutil.copytree(gated.bundle, staged)
    draft = gated.people.store.path("evaluation/suites/production/.0002.0f")
    shutil.copytree(draft.with_name("0001"), draft)
    gated.forget()
    assert holding(gated.people.root, *gated.words()) == set()
    assert not staged.exists() and not draft.exists()


def test_counts_go_too_where_the_recipe_says_so(gated: Gated) -> None:
    store, before = gated.people.store, bundle.recompute(gated.bundle)
    proof = gated.forget(erase_counts=True)
    assert proof.remains == () and holding(gated.people.root, *gated.words()) == set()
    id = gated.suite.items[0].id
    assert not [path for path in gated.bundle.rglob("*.jsonl") if id in path.read_text()], "no count, no leaf"
    report = bundle.recompute(gated.bundle)
    assert report.reduced == 1 and report.bundle.digest != before.bundle.digest
    (now,), (then,) = report.measurements, before.measurements
    assert now.comparison is not None and then.comparison is not None
    assert now.comparison.items == then.comparison.items - 1
    verdict = bundle.verify(gated.bundle)
    assert verdict.verdict is Verdict.EVIDENCE_REDUCED
    assert "what is left would be PASS" in verdict.reasons[0] and "begin a new iteration" in verdict.reasons[0]
    assert store.read(gated.work.path("gate_verdict.json"), GateVerdict) == verdict
    assert store.read(gated.work.path("eval_report.json"), EvalReport) == report.model_copy(
        update={"bundle": store.read(gated.work.path("eval_report.json"), EvalReport).bundle}
    )
    assert "EVIDENCE_REDUCED" in page(bundle.read(gated.bundle), report, verdict)
    assert gated.forget(erase_counts=True).places == {}, "twice is once"


def test_counts_that_were_kept_go_with_the_next_user(gated: Gated) -> None:
    gated.forget()
    assert bundle.verify(gated.bundle) == gated.verdict
    other = gated._replace(user=str(gated.suite.items[1].user_id))
    other.forget(erase_counts=True)
    assert bundle.recompute(gated.bundle).reduced == 2
    assert not [path for path in gated.bundle.rglob("*.jsonl") if '"erased":true' in path.read_text()]


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_crash_while_counts_go_is_healed(gated: Gated, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    """`renames`: of the bundle's folder, which a crash lets through before it comes."""
    whole, left = Path.rename, renames

    def frail(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        return whole(path, target)

    def crash(*_: object) -> None:
        raise Crash

    monkeypatch.setattr(Path, "rename", frail)
    monkeypatch.setattr(reduction, "settle", crash)
    with pytest.raises(Crash):
        removed(gated.people.store, {gated.user}, erase_counts=True)
    monkeypatch.undo()
    gated.forget(erase_counts=True)
    assert holding(gated.people.root, *gated.words()) == set()
    verdict = gated.people.store.read(gated.work.path("gate_verdict.json"), GateVerdict)
    assert verdict is not None and verdict.verdict is Verdict.EVIDENCE_REDUCED
    assert bundle.verify(gated.bundle) == verdict
    assert not [*gated.bundle.parent.glob(".evidence*")]


def test_a_suite_that_lost_too_much_decides_nothing(made: Gated, tmp_path: Path) -> None:
    people = People(tmp_path / "data")
    work = people.window(DAYS[0], [each for user in USERS for each in asked(user, DAYS[0])], SECTION)
    _, (suite,) = people.select(work)
    newest = frozen.latest(people.store, "production")
    assert newest is not None and not newest.is_emptied
    clusters = sorted({item.cluster for item in suite.items})
    lost = set(clusters[: int(0.05 * len(clusters)) + 1])
    users = {str(item.user_id) for item in suite.items if item.cluster in lost}
    removed(people.store, users)
    verdict = people.gate(work)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    (reason,) = verdict.reasons
    assert reason.startswith("production: erasure emptied ") and reason.endswith("which freezes a new generation")
    rows = [each for user in USERS if user not in users for each in asked(user, DAYS[1], "of all ")]
    people.select(people.window(DAYS[1], rows, SECTION), later(1))
    newest = frozen.latest(people.store, "production")
    assert newest is not None and newest.generation.number == 2 and not newest.is_emptied
