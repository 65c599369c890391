"""The two stages end to end on the real suite and the real checker; only the models are stand-ins."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evals import bundle
from evals.__main__ import main
from evals.evaluate import decide, evaluate
from evals.gate import Verdict
from evals.report import picture, table
from evals.runner import run, sampling, template_digest
from pipeline.demo.suite import ensure_suite
from pipeline.iteration import identify
from pipeline.recipe import Evaluation
from pipeline.rewards.verifiers import Grade, grade
from pipeline.serving.sample import Completion, Messages, Sampling, SamplingResponse
from pipeline.storage import DatasetRef, ModelRef, Store
from pipeline.traces.context import IterationContext
from tests.contexts import context_of
from tests.suites import embedded_suite

from .conftest import DECODING

SECTION = Evaluation(items=240, max_standard_error=0.05, guard_margin=0.05)
OLD, NEW = ModelRef(uri="models/old", digest="old"), ModelRef(uri="models/new", digest="new")


class StandIn:
    """A server whose models know a share of the answers; counts how often it is asked."""

    def __init__(self, skills: dict[str, float]) -> None:
        self.skills, self.calls = skills, 0
        self.answers = {item.messages[0]["content"]: item.reference for item in embedded_suite(SECTION).items}

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], plan: Sampling) -> SamplingResponse:
        self.calls += 1
        rng = random.Random(f"{model.digest}{plan.seed}")

        def answer(prompt: Messages) -> Completion:
            known = rng.random() < self.skills[model.digest]
            number = self.answers[prompt[0]["content"]] if known else "0"
            return Completion(text=f"#### {number}", tokens=4, finished=True, latency_s=rng.random())

        completions = [[answer(prompt) for _ in range(plan.samples)] for prompt in prompts]
        return SamplingResponse(completions=completions, decoding=DECODING)


def check(pairs: Sequence[tuple[str, str]]) -> list[Grade]:
    return grade(pairs, workers=1, timeout_s=5.0)


def context(store: Store, id: str = "it", champion: ModelRef = OLD) -> IterationContext:
    iteration = identify(0, "m", champion, DatasetRef(uri="", rows=0, digest="d"), "r").model_copy(update={"id": id})
    ensure_suite(store, SECTION)
    return context_of(store, iteration, evaluation=SECTION)


def launch(root: Path, skill: float = 0.7) -> tuple[Store, StandIn, Any]:
    store, server = Store(root), StandIn({"old": 0.4, "new": skill})
    return store, server, evaluate(context(store), NEW, server, check)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Any]:
    store, _, report = launch(tmp_path_factory.mktemp("store"))
    decide(context(store), report)
    return store, report


def test_a_better_model_passes_and_a_second_run_does_nothing(tmp_path: Path) -> None:
    store, server, report = launch(tmp_path)
    verdict = decide(context(store), report)
    assert verdict.verdict is Verdict.PASS
    assert (verdict.report_digest, verdict.bundle_digest) == (report.digest(), report.bundle.digest)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = evaluate(context(store), NEW, server, check)
    assert (again, decide(context(store), again)) == (report, verdict)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert server.calls == 2


def test_a_retry_after_the_bundle_reports_that_bundle(tmp_path: Path) -> None:
    store, server, report = launch(tmp_path)
    (tmp_path / "iterations" / "it" / "eval_report.json").unlink()
    server.skills["new"] = 0.0
    assert evaluate(context(store), NEW, server, check) == report
    assert server.calls == 2


def test_a_failed_server_publishes_nothing(tmp_path: Path) -> None:
    def fail(model: ModelRef, prompts: Sequence[Messages], plan: Sampling) -> SamplingResponse:
        raise RuntimeError("serving failed")

    with pytest.raises(RuntimeError, match="serving failed"):
        evaluate(context(Store(tmp_path)), NEW, fail, check)
    assert [path.parent.name for path in tmp_path.rglob("*") if path.is_file()] == ["suites"]


def test_the_same_evidence_has_the_same_digest_elsewhere(tmp_path: Path, published: tuple[Store, Any]) -> None:
    _, _, report = launch(tmp_path)
    assert report.bundle.uri != published[1].bundle.uri
    assert report.bundle.digest == published[1].bundle.digest
    assert report.digest() == published[1].digest()


def test_verify_repeats_the_verdict_wherever_the_bundle_is(
    tmp_path: Path, published: tuple[Store, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    store, report = published
    verdict = decide(context(store), report)
    copy = shutil.copytree(store.path("iterations", "it", "evidence"), tmp_path / "carried")
    assert bundle.verify(copy, verdict.bundle_digest) == verdict
    assert main(["verify", str(copy)]) == 0
    assert verdict.report_digest in capsys.readouterr().out
    assert main(["verify", str(copy), "another"]) == 1
    assert "Take the bundle that was judged" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*bundle.FILES, bundle.MANIFEST])
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, published: tuple[Store, Any], name: str) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    original = (copy / name).read_bytes()
    for place in random.Random(name).sample(range(len(original)), 12):
        content = bytearray(original)
        content[place] ^= 1
        (copy / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"\."):
            bundle.verify(copy)
    assert main(["verify", str(copy)]) == 1


def test_a_manifest_that_says_the_same_in_other_bytes_is_refused(tmp_path: Path, published: tuple[Store, Any]) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    with (copy / bundle.MANIFEST).open("a") as stream:
        stream.write("\n")
    with pytest.raises(ValueError, match="was altered"):
        bundle.verify(copy)


@pytest.mark.parametrize("name", [*bundle.FILES, bundle.MANIFEST, "extra.jsonl"])
def test_missing_and_extra_files_are_found(tmp_path: Path, published: tuple[Store, Any], name: str) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    if (copy / name).exists():
        (copy / name).unlink()
    else:
        (copy / name).write_text("{}")
    with pytest.raises(ValueError, match=r"Fetch the bundle again|Give the directory"):
        bundle.verify(copy)


def test_verify_refuses_outcomes_rewritten_with_their_digests(tmp_path: Path, published: tuple[Store, Any]) -> None:
    copy = shutil.copytree(published[0].path("iterations", "it", "evidence"), tmp_path / "carried")
    lines = (copy / "candidate.jsonl").read_text()
    (copy / "candidate.jsonl").write_text(lines.replace('"wrong"', '"correct"', 1))
    manifest = bundle.BundleManifest(files={name: bundle.digest_file(copy / name) for name in bundle.FILES})
    (copy / bundle.MANIFEST).write_text(bundle._text(manifest))
    with pytest.raises(ValueError, match="do not give the recorded numbers"):
        bundle.verify(copy)


def test_a_report_that_the_evidence_does_not_support_is_refused(tmp_path: Path) -> None:
    store, _, report = launch(tmp_path, skill=0.1)
    comparison = report.measurement.comparison
    better = comparison.difference.model_copy(update={"lower": 0.2, "bootstrap_lower": 0.2})
    forged = report.model_copy(
        update={
            "measurement": report.measurement.model_copy(
                update={"comparison": comparison.model_copy(update={"difference": better})}
            )
        }
    )
    with pytest.raises(ValueError, match="evaluate again"):
        decide(context(store), forged)
    assert decide(context(store), report).verdict is Verdict.FAIL


def test_the_suite_is_held_out_fixed_and_clustered() -> None:
    first = embedded_suite(SECTION)
    assert first == embedded_suite(SECTION)
    assert first.digest() != embedded_suite(SECTION.model_copy(update={"seed": 12})).digest()
    assert len({item.id for item in first.items}) == len(first.items) == SECTION.items
    assert 30 < len({item.cluster for item in first.items}) < SECTION.items
    changed = first.model_copy(update={"items": (first.items[0].model_copy(update={"reference": "1"}),)})
    assert changed.digest() != first.model_copy(update={"items": first.items[:1]}).digest()


def test_both_arms_are_sampled_as_the_recipe_says() -> None:
    section = Evaluation(samples_per_item=2, temperature=0.7, max_completion_tokens=9, seed=5)
    plan = sampling(section)
    assert (plan.samples, plan.temperature, plan.max_completion_tokens, plan.seed) == (2, 0.7, 9, 5)


def test_the_runner_refuses_answers_that_it_cannot_assign() -> None:
    items, plan, whole = embedded_suite(SECTION), sampling(SECTION), StandIn({"old": 0.5})

    def lazy(model: ModelRef, prompts: Sequence[Messages], plan: Sampling) -> SamplingResponse:
        return whole(model, prompts[1:], plan)

    with pytest.raises(ValueError, match="one full list for each prompt"):
        run(OLD, items, plan, lazy, check)
    with pytest.raises(ValueError, match="grade each pair"):
        run(OLD, items, plan, whole, lambda pairs: check(pairs[1:]))


def test_the_chat_template_is_part_of_the_protocol(tmp_path: Path) -> None:
    models = [ModelRef(uri=str(tmp_path / name), digest=name) for name in "abc"]
    for model in models:
        Path(model.uri).mkdir()
    (tmp_path / "a/chat_template.jinja").write_text("{{ x }}\n")
    (tmp_path / "b/tokenizer_config.json").write_text('{"chat_template": "{{ x }}"}')
    (tmp_path / "c/chat_template.jinja").write_text("{{ y }}")
    a, b, c = map(template_digest, models)
    assert a == b != c
    store, server = Store(tmp_path / "store"), StandIn({"a": 0.4, "b": 0.8, "c": 0.8})
    for candidate, expected in ((models[1], Verdict.PASS), (models[2], Verdict.INCONCLUSIVE)):
        work = context(store, f"it-{candidate.digest}", models[0])
        assert decide(work, evaluate(work, candidate, server, check)).verdict is expected


def test_the_report_is_readable(published: tuple[Store, Any]) -> None:
    store, report = published
    text = table(report, decide(context(store), report))
    assert text.startswith("**PASS**")
    assert all(word in text for word in ("| accuracy |", "| no_answer |", "| truncated |", "multiply_add"))
    assert picture(report).startswith(b"\x89PNG")
    refused = report.measurement.model_copy(update={"problems": ("champion: empty",), "comparison": None})
    without = report.model_copy(update={"measurement": refused})
    assert "champion: empty" in table(without)
    assert picture(without).startswith(b"\x89PNG")


def test_importing_the_stage_loads_neither_scipy_nor_matplotlib() -> None:
    code = (
        "import sys, evals.evaluate, evals.report; print(sorted({'scipy', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_no_digest_depends_on_where_the_data_root_lies(tmp_path: Path) -> None:
    def evaluated(root: Path) -> Any:
        old, new = (ModelRef(uri=str(root / "iterations" / name / "model"), digest=name) for name in ("old", "new"))
        sampler = StandIn({"old": 0.4, "new": 0.7})
        return evaluate(context(Store(root), champion=old), new, sampler, check)

    one, other = evaluated(tmp_path / "one"), evaluated(tmp_path / "another" / "place")
    assert (one.digest(), one.bundle.digest) == (other.digest(), other.bundle.digest)
    (tmp_path / "one").rename(tmp_path / "moved")
    store = Store(tmp_path / "moved")
    report = evaluated(store.root)
    assert report.candidate.uri == str(tmp_path / "moved" / "iterations" / "new" / "model")
    verdict = decide(context(store), report)
    assert (verdict.report_digest, verdict.bundle_digest) == (one.digest(), one.bundle.digest)
    carried = shutil.copytree(store.path("iterations", "it", "evidence"), tmp_path / "carried" / "away")
    assert bundle.verify(carried, verdict.bundle_digest).report_digest == verdict.report_digest
