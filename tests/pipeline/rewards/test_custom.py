"""The user's own function: what each way of being broken comes to, and over a governed table."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.recipe.custom import CustomReward
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.rewards.custom import CustomScore, CustomScorer, CustomTask, check_function
from pipeline.rewards.records import Finding
from tests.processes import is_alive, wait_for

from .conftest import Label, call, day_file, rows_of
from .functions import BAD, QUALITY, write_function

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CustomScorer]:
    os.environ["JUDGE_API_KEY"] = "a secret"
    with closing(CustomScorer(write_function(tmp_path_factory.mktemp("bad"), BAD, timeout_s=2.0))) as scorer:
        yield scorer
    del os.environ["JUDGE_API_KEY"]


def task(completion: str) -> CustomTask:
    return CustomTask(json.dumps([{"role": "user", "content": "?"}]), completion, None)


def test_what_a_function_started_ends_with_its_deadline(broken: CustomScorer, tmp_path: Path) -> None:
    metadata = json.dumps({"pids": str(tmp_path / "pids")})
    (hung,) = broken([task("leaves children")._replace(metadata=metadata)])
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert hung.finding.reason == "custom_timeout" and len(pids) == 2
    wait_for(lambda: not any(map(is_alive, pids)))  # SIGKILL takes effect a moment later


@pytest.mark.parametrize(
    ("completion", "reason", "detail"),
    [
        ("hangs", "custom_timeout", ""),
        ("raises", "custom_raised", "KeyError: 'first\\nthe last line'"),
        ("dies", "custom_died", ""),
        ("memory", "custom_died", ""),
        ("NaN", "custom_invalid", "float: nan"),
        ("negative", "custom_invalid", "float: -0.5"),
        ("str", "custom_invalid", "str: '0.5'"),
        ("complex", "custom_invalid", "complex: 1j"),
        ("none", "custom_abstained", ""),
    ],
)
def test_a_bad_answer_is_an_error_of_its_row(broken: CustomScorer, completion: str, reason: str, detail: str) -> None:
    before, bad, after = broken([task("int"), task(completion), task("true")])
    assert bad == CustomScore(Finding(None, reason), detail)
    assert before.finding == after.finding == Finding(1.0), "and of no other"


def test_what_a_function_prints_goes_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with closing(CustomScorer(write_function(tmp_path, BAD))) as scorer:
        scores = scorer([task("prints"), task("int"), task("prints")])
    assert [score.finding.value for score in scores] == [0.75, 1.0, 0.75]
    assert capfd.readouterr() == ("", "")


def test_a_function_sees_no_secrets_in_its_environment(broken: CustomScorer) -> None:
    assert broken([task("environment")])[0].finding == Finding(0.0)


def test_equal_tasks_are_scored_once_and_told_at_once(tmp_path: Path) -> None:
    source = f"""
    def reward(prompt, completion, reference, metadata):
        with open({str(tmp_path / "calls")!r}, "a") as stream:
            stream.write(completion)
        return 0.5
    """
    done: list[str] = []
    with closing(CustomScorer(write_function(tmp_path, source))) as scorer:
        scores = scorer([task("a"), task("b"), task("a")], lambda task, score: done.append(task.completion))
    assert [score.finding.value for score in scores] == [0.5] * 3
    assert sorted(done) == sorted((tmp_path / "calls").read_text()) == ["a", "b"]


def test_a_function_is_given_what_the_trace_has(tmp_path: Path) -> None:
    source = """
    def reward(prompt, completion, reference, metadata, *, by):
        assert prompt == [{"role": "user", "content": "é?"}], prompt
        assert (completion, reference, metadata) == ("yes", "no", {"tier": 2})
        return by
    """
    asked = CustomTask(json.dumps([{"role": "user", "content": "é?"}]), "yes", "no", '{"tier": 2}')
    with closing(CustomScorer(write_function(tmp_path, source, options={"by": 0.5}))) as scorer:
        assert scorer([asked]) == [CustomScore(Finding(0.5))]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_package\ndef reward(a, b, c, d): ...", r"cannot be imported \(ModuleNotFoundError: No module"),
        ("import sys\nsys.exit(3)\ndef reward(a, b, c, d): ...", r"cannot be imported \(SystemExit: 3\)\. Mend it"),
        ("reward = 3", r"custom\.code: .* cannot be called \(3 is not a callable object\)"),
        ("reward = lambda a, b: 1", r"cannot be called \(too many positional arguments\)"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(tmp_path: Path, source: str, message: str) -> None:
    section = write_function(tmp_path, source)
    with pytest.raises(ValueError, match=message):
        check_function(Rewards(custom=section, judged=Weights(custom=1.0)))


ALONE = {"verified": {"custom": 1.0}, "judged": {"custom": 1.0}}
GOLD = "region; failover; replica"
ANSWERS = {
    "Use a replica in another region, because failover then takes seconds.": 1.0,
    "Use a replica in another region, because that is near": 0.5 * 2 / 3 + 0.25 + 0.15,
    "A replica.": 0.5 / 3 + 0.15 + 0.1,
    "It depends " + "on many things " * 20: 0.0,
    "Region, failover, replica" + " and so on" * 20 + ".": 0.5 + 0.1,
}
"""What the composed reward of seed 000 makes of each, by hand."""


def recipe(section: CustomReward) -> dict[str, object]:
    return {**ALONE, "custom": section.model_dump()}


def test_logged_completions_are_worth_the_seeds_sum(export: Path, tmp_path: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer, GOLD) for n, answer in enumerate(ANSWERS)])
    labels = label(**recipe(write_function(tmp_path / "f", QUALITY, "quality")))
    rows = rows_of(labels)
    assert [rows[f"t{n}"]["final_reward"] for n in range(5)] == pytest.approx(list(ANSWERS.values()), abs=1e-12)
    assert rows["t0"]["custom_id"]
    custom = labels.components["custom"]
    assert (custom.count, custom.distinct, custom.missing) == (5, 5, {})


def test_bad_answers_are_nulls_with_a_reason(export: Path, tmp_path: Path, label: Label) -> None:
    kinds = ["hangs", "raises", "NaN", "1e9", "list", "none", "prints"]
    day_file(export, 5, [call(n, kind) for n, kind in enumerate(kinds)])
    section = write_function(tmp_path / "f", BAD, timeout_s=1.0)
    labels = label(**recipe(section))
    rows = rows_of(labels)
    reasons = ["custom_timeout", "custom_raised", *["custom_invalid"] * 3, "custom_abstained", ""]
    assert [rows[f"t{n}"]["reason"] for n in range(7)] == reasons
    assert [rows[f"t{n}"]["final_reward"] for n in range(7)] == [None] * 6 + [0.75]
    assert rows["t3"]["custom_detail"] == "float: 1000000000.0"
    assert json.loads(rows["t2"]["missing"]) == {"custom": "custom_invalid"}
    assert labels.components["custom"].missing == {
        "custom_timeout": 1, "custom_raised": 1, "custom_invalid": 3, "custom_abstained": 1,
    }  # fmt: skip
    again = label(digest="later", **recipe(section))
    assert (again.checked, again.remembered) == (1, 6), "a hang may have been the machine's: only that is asked again"


def test_only_a_changed_function_is_asked_anew(export: Path, tmp_path: Path, label: Label) -> None:
    day_file(export, 5, [call(n, f"answer {n}") for n in range(6)])
    half = "def reward(prompt, completion, reference, metadata): return 0.5\n"
    section = write_function(tmp_path / "f", half)
    first = label(**recipe(section))
    assert (first.checked, first.remembered) == (6, 0)
    moved = write_function(tmp_path / "g", half)
    assert (label(digest="b", **recipe(moved)).checked) == 0, "the same content elsewhere is the same function"
    third = label(digest="c", **recipe(write_function(tmp_path / "f", half.replace("0.5", "0.25"))))
    assert (first.mean_reward, third.checked, third.mean_reward) == (0.5, 6, 0.25)
