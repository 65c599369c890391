"""The command that checks a deployment: what it says of a good one, and of each thing that is wrong."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest

from jobs import validate
from tests.own import make_model, write_langfuse_export, write_suite

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OWN = ROOT / "jobs" / "recipes" / "own.yaml"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("own")
    by_name = {"model": make_model(root / "my model"), "suite": write_suite(root / "suite.jsonl")}
    return by_name | {"export": write_langfuse_export(root / "export"), "data": root / "data"}


def suite_of(path: Path) -> list[str]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return [f"evaluation.suites.0.path='{path}'", f"evaluation.suites.0.sha256={digest}"]


def check(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], *overrides: str
) -> tuple[int, list[str], list[str]]:
    """Exit code, lines that are fine, lines that are not."""
    own = [f"base_model.uri='{places['model']}'", f"data_root='{places['data']}'"]
    own += [f"traces.source={{kind: langfuse_export, uri: '{places['export']}'}}", *suite_of(places["suite"])]
    own += ["training.grpo.generation=transformers", *overrides]
    code = validate.main(["--recipe", str(OWN), "--json", "--override", *own])
    output = json.loads(capsys.readouterr().out)
    assert output["fine"] is (code == 0)
    return code, *([line["text"] for line in output["lines"] if line["fine"] is fine] for fine in (True, False))


def test_a_good_deployment_is_described(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, fine, wrong = check(places, capsys, "training.grpo.max_completion_tokens=64")
    text = "\n".join(fine)
    assert (code, wrong) == (0, [])
    assert "own.yaml resolves: own, digest" in text and "\ntraces.source: 640 rows of calls in 4 files" in text
    assert "rollout: shows that no canary is worse by 3 points; 9 days at least\nrollout at 5%: 19 of 20" in text
    assert "days with 206 requests a day; a person is asked before" in text
    assert not places["data"].exists()  # nothing is written


def test_a_source_of_another_kind_is_a_warning(places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    spans = f"traces.source={{kind: otel, uri: '{places['export']}'}}"
    code, fine, wrong = check(places, capsys, "training.grpo.max_completion_tokens=64", spans)
    said = next(line for line in fine if line.startswith("traces.source: "))
    assert (code, wrong) == (0, [])
    assert said.startswith(f"traces.source: warning: {places['export']} looks like langfuse_export (")


def test_each_broken_file_is_named_with_what_is_lost(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    days = sorted((write_langfuse_export(tmp_path / "export") / "observations_v2").iterdir())
    days[0].write_bytes(days[0].read_bytes()[:-20])
    days[1].write_bytes(b"")
    packed = gzip.compress(days[2].read_bytes())
    days[2].rename(days[2].with_suffix(".jsonl.gz")).write_bytes(packed[: len(packed) // 2])
    source = f"traces.source={{kind: langfuse_export, uri: '{tmp_path / 'export'}'}}"
    code, fine, wrong = check(places, capsys, "training.grpo.max_completion_tokens=64", source)
    said = [line.removeprefix("traces.source: ") for line in fine if line.startswith("traces.source: ")]
    assert (code, wrong, len(said)) == (0, [], 4)
    assert (
        said[0]
        == f"warning: observations_v2/{days[0].name}: Input data was truncated, row 128 and what follows it is lost"
    )
    assert said[1] == f"warning: observations_v2/{days[1].name}: it is empty"
    assert said[2].startswith(f"warning: observations_v2/{days[2].name}.gz: the gzip breaks off, row ")
    assert said[3] == f"{128 + int(said[2].split('row ')[1].split()[0]) + 101} rows of calls in 4 files"


@pytest.mark.parametrize(
    ("override", "start", "words"),
    [
        ("evaluation.suites=[{kind: items, preset: arithmetic, items: 50}]", "evaluation: ", "50 items"),
        ("rollout.weights=[5, 25]", "rollout.weights is (5, 25)", "rising percentages that end in 100"),
        ("evaluation.suites.0.path=/nowhere/suite.jsonl", "suite own-questions: ", "Give its path"),
    ],
)
def test_what_speaks_against_a_launch_is_a_line(
    override: str, start: str, words: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, wrong = check(places, capsys, override)
    assert code == 1 and [line for line in wrong if line.startswith(start) and words in line], wrong


def test_a_template_that_refuses_a_role_is_a_problem(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    strict = make_model(tmp_path / "strict")
    template = strict / "chat_template.jinja"
    refusal = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    template.write_text(refusal + template.read_text())
    own = [f"base_model.uri='{strict}'", "training.grpo.max_completion_tokens=64"]
    assert check(places, capsys, *own)[0] == 0
    code, _, wrong = check(places, capsys, *own, "evaluation.suites.0.system='Be brief.'")
    assert code == 1
    assert wrong == [
        f"evaluation: the suite own-questions cannot be asked: the chat template of {strict} leaves out or refuses "
        "system messages (240 of 240 items). Set base_model.chat so that it renders them, or leave the suite out."
    ]


def test_a_template_that_is_missing_is_refused(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = make_model(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    code, _, wrong = check(places, capsys, f"base_model.uri='{bare}'")
    assert code == 1
    assert [line for line in wrong if line.startswith("base_model.uri: chat template: error: there is none")]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [("training.sed=3", "training.sed: there is no such field"), ("name='x", "No closing quotation")],
)
def test_a_mistake_in_the_overrides_is_a_line(
    overrides: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", overrides)
    assert validate.main([]) == 1
    assert said in capsys.readouterr().out


def test_a_suite_that_is_still_to_be_frozen_is_no_problem(
    places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    suite = places["suite"]
    digest = hashlib.sha256(suite.read_bytes()).hexdigest()
    suites = f"evaluation.suites=[{{kind: items, name: own, path: '{suite}', sha256: {digest}}}, "
    suites += "{kind: traces, preset: production}, {kind: traces, preset: golden, role: %s}]"
    code, fine, wrong = check(places, capsys, "training.grpo.max_completion_tokens=64", suites % "report")
    assert (code, wrong) == (0, [])
    assert "suite production (report): preference_dataset will freeze it" in fine
    assert any(line.startswith("suite golden (report): not asked yet. The suite golden can be frozen") for line in fine)
    code, _, wrong = check(places, capsys, "training.grpo.max_completion_tokens=64", suites % "guard")
    assert code == 1
    assert [line.partition(" row (")[0] for line in wrong] == ["suite golden: The suite golden can be frozen from no"]
