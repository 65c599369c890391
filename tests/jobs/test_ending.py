"""The first lines of the summary: how this iteration ended, of whatever its predecessors did, and what to type next."""

import shlex
from pathlib import Path

import pytest

from assets.outcome import Ending as Ended
from assets.outcome import conclude
from assets.resources import Deployment
from evals.measurements import EvalReport
from jobs import summary
from jobs.ending import ending
from pipeline.core.iteration import Iteration
from pipeline.core.layout import LATEST
from pipeline.core.storage import CheckpointRef, Store
from pipeline.recipe import Selection
from pipeline.recipe.overrides import split
from pipeline.rollout.record import ModelVersion
from pipeline.selection.choose import choose
from pipeline.training.result import Health, HealthFinding, TrainingResult
from tests.evals.conftest import Kit
from tests.pipeline.rollout.conftest import BASE, NAME, World, iteration_over, model, version_of
from tests.pipeline.training.plans import make_plan

pytestmark = pytest.mark.slow

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"

LAUNCH = "dagster job launch -j preference_tuning"


class Place:
    """A deployment whose first candidate, `a`, was promoted, and its second iteration."""

    def __init__(self, root: Path) -> None:
        overrides = ["name=with a space", f"data_root={root}", f"base_model.name={NAME}", "training.seed=4"]
        self.settings = Deployment(recipe_path=str(EMBEDDED), overrides=overrides)
        self.store = Store(root)
        self.world = World(self.store)
        self.first = self.begin(iteration_over(BASE))
        self.propose("a", 1)
        self.world.tick_until("promoted")
        self.iteration = self.begin(iteration_over(model("a"), 1))

    def begin(self, iteration: Iteration) -> Iteration:
        self.store.write(LATEST, iteration)
        return iteration

    def leave(self, digest: str, number: int) -> ModelVersion:
        """What the stages up to the registry leave of a candidate that is better."""
        kit = Kit()
        section = kit.section()
        suite = kit.suite(section)
        arms = (kit.arm("a", section, suite, 0.7), kit.arm("b", section, suite, 0.9))
        report: EvalReport = kit.report(section, suite, *arms)
        self.store.write(self.iteration.path("eval_report.json"), report)
        version = version_of(digest, number, self.iteration)
        self.store.write(self.iteration.path("model_version.json"), version)
        return version

    def propose(self, digest: str, number: int) -> None:
        state = self.world.state
        self.world.propose(digest, number=number)
        iteration = iteration_over(state.past.champion.model if state.past.champion else BASE, state.past.promotions)
        self.store.write(iteration.path("model_version.json"), version_of(digest, number, iteration))
        conclude(self.store, iteration, "rollout", f"version {number}")

    def lines(self) -> list[str]:
        return list(summary.lines(self.settings))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path / "data")


def overrides(command: str) -> list[str]:
    """What a typed command sets."""
    first = shlex.split(command)[0]
    assert first.startswith("PREFERENCE_TUNING_OVERRIDES=")
    return split(first.partition("=")[2])


def test_an_iteration_under_way_names_its_stage(place: Place) -> None:
    text, next, _ = ending(place.settings, place.iteration)
    assert text == "in progress at stage traces"
    assert next.endswith(f" {LAUNCH}") and overrides(next) == place.settings.overrides


def test_not_now_proposes_what_the_evidence_could_train(place: Place, tmp_path: Path) -> None:
    conclude(place.store, place.iteration, "not trained", "few prompts")
    text, next, purpose = ending(place.settings, place.iteration)
    assert text == "not now: few prompts" and next.endswith(f" {LAUNCH}")
    assert overrides(next) == place.settings.overrides and purpose.startswith("looks for newer traces")
    plan = make_plan(tmp_path / "plan")[1]
    thumbs = {"coverage": 0.0, "winners": 0, "thumbs": 9, "contrasted_thumbs": 9}
    evidence = plan.decision.evidence.model_copy(update=thumbs)
    decision = choose(evidence, Selection(), 0.5)
    place.store.write(place.iteration.path("training/plan.json"), plan.model_copy(update={"decision": decision}))
    assert decision.method == "none"
    assert overrides(ending(place.settings, place.iteration).next)[-1] == "selection.method=kto"
    lines = place.lines()
    assert sum("label coverage" in line for line in lines) == 2, "of two methods, and once each"
    assert any(line.startswith("    would change it") for line in lines)


@pytest.mark.parametrize(
    ("kind", "detail", "text", "override"),
    [
        ("refused", "improvement not shown", "refused by the gate: improvement not shown", "training.seed=5"),
        ("stopped", "loss is nan", "stopped by the sentinel: loss is nan", "training.seed=5"),
    ],
)
def test_an_honest_end_says_why_and_what_to_type(
    place: Place, kind: Ended, detail: str, text: str, override: str
) -> None:
    conclude(place.store, place.iteration, kind, detail)
    result = ending(place.settings, place.iteration)
    assert result.text == text
    assert overrides(result.next)[-1] == override and result.next.endswith(f" {LAUNCH}")
    kept = Deployment(recipe_path=place.settings.recipe_path, overrides=overrides(result.next)).recipe()
    assert kept.data_root == place.settings.recipe().data_root, "what was set stays set"
    assert "looks for newer traces" in result.purpose
    first, *rest = place.lines()
    assert first == f"iteration 2 ({place.iteration.id}) {text}"
    assert rest[0] == f"next: {result.next}"
    assert "no candidate of this iteration" in "\n".join(rest)
    assert "  champion              version 1" in rest


def test_a_held_candidate_is_not_told_as_the_champion_before_it(place: Place) -> None:
    version = place.leave("b", 2)
    finding = HealthFinding(verdict="HOLD", rule="kl", step=7, reason="kl is 0.13 a token from the base model")
    result = TrainingResult(
        iteration=place.iteration.id, plan_digest="p", metrics=(), seconds=1.0, attempts=1, resumed_from=(),
        checkpoint=CheckpointRef(adapter=version.adapter, model=version.model, step=10),
        health=Health(verdict="HOLD", findings=(finding,)),
    )  # fmt: skip
    place.store.write(place.iteration.path("training/result.json"), result)
    conclude(place.store, place.iteration, "held", "a long text")
    first, second, *rest = place.lines()
    assert ") held, " in first and first.endswith(f"%: {finding.reason} (step 7)")
    accepting = Deployment(recipe_path=str(EMBEDDED), overrides=overrides(second.removeprefix("next: ")))
    assert accepting.recipe().rollout.accept_hold == place.iteration.id
    assert shlex.split(second)[2:8] == ["dagster", "job", "launch", "-j", "preference_tuning", "-o"]
    assert "  rollout               version 2: not rolled out" in rest
    assert not any("promoted" in line for line in (first, second, *rest))


def test_a_candidate_in_the_traffic_is_told_until_it_is_promoted(place: Place) -> None:
    place.leave("b", 2)
    place.propose("b", 2)
    place.world.tick_until("observing")
    result = ending(place.settings, place.iteration)
    assert result.text.startswith("in rollout, ") and "version 2: observing, 5% on the canary" in result.text
    assert result.next.endswith(" dagster job launch -j canary_rollout")
    place.world.tick_until("promoted")
    text, next, _ = ending(place.settings, place.iteration)
    assert text.startswith("promoted version 2, ") and text.count("%") == 2
    assert next.endswith(f" {LAUNCH}")
    assert "  champion              version 2" in place.lines()


def test_a_candidate_that_was_rolled_back_is_not_promoted(place: Place) -> None:
    place.leave("b", 2)
    place.propose("b", 2)
    place.world.metrics.canary = {"quality": 0.1}
    place.world.tick_until("rolled_back")
    assert "version 2: rolled_back" in ending(place.settings, place.iteration).text
    assert ending(place.settings, place.iteration).text.startswith("not promoted, ")
    assert "  champion              version 1" in place.lines()


def test_a_rollout_on_hold_names_its_own_command(place: Place) -> None:
    place.leave("b", 2)
    place.propose("b", 2)
    place.world.tick_until("observing")
    place.world.metrics.spoil = lambda look: None
    place.world.tick_until("held")
    result = ending(place.settings, place.iteration)
    assert result.text.startswith("rollout held, ")
    assert result.next.endswith(" pt rollout status")


def test_without_any_iteration_the_summary_says_what_to_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={tmp_path}")
    assert summary.main() == 2
    assert "There is no iteration yet. Launch the whole job" in capsys.readouterr().err
