"""Forgetting somebody whose questions a gate has asked: no byte of them is left, and the verdict stands."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evals import bundle
from evals import erasure as evaluations
from evals.gate import GateVerdict, Verdict
from evals.records import EvalReport
from evals.suites import Suite, frozen, suites
from pipeline.core.removal import make
from pipeline.core.storage import Store
from pipeline.governance import erasure
from pipeline.governance.erasure.records import ErasureProof, Person
from pipeline.serving import inference
from pipeline.traces.context import IterationContext
from tests.contexts import context_of, stage_context
from tests.evals.people import DAYS, USERS, People, asked, later, section_of
from tests.pipeline.governance.erasure.conftest import NAME, NOW, secret
from tests.pipeline.governance.erasure.looking import holding

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

    def forget(self) -> ErasureProof:
        return erasure.forget(
            stage_context(self.people.store, self.people.lake, name=NAME),
            Person.named(self.user),
            registry_uri=self.people.tracking_uri,
            now=NOW,
            keepers=(evaluations.places,),
        )


def removed(store: Store, users: set[str]) -> None:
    for place in evaluations.places(store, users):
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
    root, store = gated.people.root, gated.people.store
    before = holding(root, *gated.words())
    evidence = gated.work.path("evidence")
    assert {f"{evidence}/production/{name}" for name in (bundle.ITEMS, *bundle.ARMS)} <= before
    assert sum(name.startswith("evaluation/answers/") for name in before) == 2
    assert "evaluation/suites/production/0001/items.jsonl" in before
    salt, report = gated.suite.items[0].salt, store.read(gated.work.path("eval_report.json"), EvalReport)
    assert report is not None
    proof = gated.forget()
    assert holding(root, *gated.words(), salt) == set()
    assert proof.remains == ()
    assert proof.places["evidence bundles"] == {evidence: 1}
    assert proof.places["frozen suites"] == {"evaluation/suites/production/0001/items.jsonl": 1}
    assert not gated.bundle.exists()
    assert store.read(gated.work.path("gate_verdict.json"), GateVerdict) == gated.verdict
    assert store.read(gated.work.path("eval_report.json"), EvalReport) == report
    assert gated.people.gate(gated.work) == gated.verdict, "nothing is asked again"
    assert gated.forget().places == {}, "twice is once"


def test_a_report_without_a_verdict_goes_with_its_evidence(gated: Gated) -> None:
    store = gated.people.store
    store.path(gated.work.path("gate_verdict.json")).unlink()
    removed(store, {gated.user})
    assert not gated.bundle.exists() and not store.path(gated.work.path("eval_report.json")).exists()
    assert gated.people.gate(gated.work).verdict is Verdict.PASS, "over the items that are left"
    assert bundle.verify(gated.bundle).verdict is Verdict.PASS


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
    protocol = bundle.read(gated.people.store.path(work.path("evidence"))).suites[0].arms[0].protocol
    assert protocol.suite_digest == after.digest()


class Crash(BaseException):
    """No handler of ours catches it, as none outlives a kill."""


@pytest.mark.parametrize("withdrawn", [False, True])
def test_a_crash_at_any_write_is_healed(gated: Gated, monkeypatch: pytest.MonkeyPatch, withdrawn: bool) -> None:
    """One attempt after the other, each of which dies at its second write. `withdrawn`: the item has left suite and
    journals before, and the bundle alone can tell whose it is."""
    store, calls, crashes = gated.people.store, 0, 0
    if withdrawn:
        make(inference.removals(store, {gated.suite.items[0].id}))
        make(frozen.removals(store, {gated.suite.items[0].id}))
    replace, remove = Path.replace, shutil.rmtree

    def frail(whole: Callable[..., Any]) -> Callable[..., Any]:
        def write(path: Path, *more: Any, **named: Any) -> Any:
            nonlocal calls, crashes
            calls += 1
            if calls == 2:
                crashes += 1
                raise Crash
            return whole(path, *more, **named)

        return write

    monkeypatch.setattr(Path, "replace", frail(replace))
    monkeypatch.setattr(shutil, "rmtree", frail(remove))
    while True:
        calls = 0
        try:
            removed(store, {gated.user})
            break
        except Crash:
            continue
    assert crashes == (0 if withdrawn else 3), "two journals, a bundle and a frozen suite"
    assert holding(store.root / "evaluation", *gated.words()) == set()
    assert not [*gated.bundle.parent.glob("*evidence*")]


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
