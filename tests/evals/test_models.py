"""`pt evals run` as it is typed: one model's scores and two models compared, over stand-ins for published data sets."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evals.__main__ import main
from evals.records import ModelScores
from evals.report import scores_table
from pipeline.demo import MODEL_DIR
from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, chat_server, completion

from .published import COUNT, published, write

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OTHERS = "evaluation.serving={kind: endpoint, champion: old, candidate: new}"
"""The answers of a server on loopback, in place of the embedded engine's."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    """`new` answers rightly, and `old` the levels above 2."""
    rows = {row["problem"]: row for row in published("math500")}

    def answers(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse | None:
        row = rows.get(request.body["messages"][-1]["content"].partition("\n")[0])
        if row is None:
            return None
        is_right = request.body["model"] == "new" or row["level"] > 2
        message = {"role": "assistant", "content": f"\\boxed{{{row['answer'] if is_right else -1}}}"}
        return completion(request.body, choice={"message": message, "finish_reason": "stop"})

    with chat_server(answers) as opened:
        monkeypatch.setenv("SERVING_URL", opened.url)
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model with the embedded one's tokenizer."""
    folder = shutil.copytree(MODEL_DIR, tmp_path / "other")
    (folder / "note.txt").write_text("another digest")
    return folder


def typed(folder: Path, *words: object) -> int:
    return main(["run", *map(str, words), "--folder", str(folder / "work")])


@pytest.mark.usefixtures("forking")
def test_a_model_is_scored_alone_by_suite_and_by_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("gsm8k", "math500", "aime")
    suites = ["--suite", *names, "--path", *(write(tmp_path, name) for name in names)]
    changes = ['instruction=""', 'sha256=""', "samples_per_item=2", "pass_at=[1, 2]", "max_completion_tokens=32"]
    assert typed(tmp_path, MODEL_DIR, *suites, "--set", *changes, "--json") == 0
    printed = capsys.readouterr()
    assert "math500: 0 answers to be asked, 80 in the journal" in printed.err, "they are those of gsm8k"
    scored = ModelScores.model_validate_json(printed.out)
    assert [(each.suite, each.items, each.samples_per_item) for each in scored.scores] == [
        (name, COUNT, 2) for name in names
    ]
    for each in scored.scores:
        assert 0.2 < each.accuracy.low < each.pass_at[1] == each.accuracy.value < each.pass_at[2]
    levels = scored.scores[1].slices
    assert [(row.name, row.items) for row in levels] == [(str(level), COUNT // 5) for level in range(1, 6)]
    mean = sum(row.accuracy.value for row in levels) / 5
    assert mean == pytest.approx(scored.scores[1].accuracy.value)
    table = scores_table(scored)
    assert "| pass@2 |" in table and "### math500" in table and "| 5 | 8 | " in table


def test_two_models_are_compared_by_level(
    tmp_path: Path, other: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite is the recipe's, and so are the engine and the number of answers."""
    suite = f"{{kind: items, preset: math500, path: {write(tmp_path, 'math500')}, sha256: ''}}"
    recipe = [
        "--recipe",
        ROOT / "jobs" / "recipes" / "embedded.yaml",
        "--override",
        OTHERS,
        f"evaluation.suites=[{suite}]",
    ]
    asked = ["--suite", "math500", *recipe, "evaluation.samples_per_item=2", f"data_root={tmp_path}"]
    assert typed(tmp_path, MODEL_DIR, other, *asked, "--json") == 0
    (measured,) = json.loads(capsys.readouterr().out)["measurements"]
    compared: dict[str, Any] = measured["comparison"]
    assert (compared["samples_per_item"], compared["difference"]["value"]) == (2, pytest.approx(0.4))
    gains = {row["name"]: (row["champion"]["value"], row["candidate"]["value"]) for row in compared["slices"]}
    assert gains == {"1": (0, 1), "2": (0, 1), "3": (1, 1), "4": (1, 1), "5": (1, 1)}
    assert all(row["champion"]["low"] < row["champion"]["high"] for row in compared["slices"])
    questions = len(server.asked)
    assert typed(tmp_path, MODEL_DIR, other, *asked) == 0
    table = capsys.readouterr().out
    assert "| 1 | 8 | 0.0% [0.0%, 32.4%] | 100.0% [67.6%, 100.0%] |" in table and "math500 (report)" in table
    assert len(server.asked) == questions + 2 * 3 * 8, "the probes of both models, and no question"
    assert not (tmp_path / "evaluation" / "ledger").exists(), "nothing was decided"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--suite", "vibes"], "There is no suite vibes. Name one of the presets arithmetic"),
        (["--suite", "aime"], "The suite aime: Value error, give the suite path or custom"),
        (["--suite", "aime", "--path", "gone.parquet"], "is not at"),
        (["--suite", "arithmetic", "aime", "--path", "a"], "The suite arithmetic is not there"),
        (["--suite", "aime", "--path", "a", "b"], "No suite takes the file b: give one --path"),
        (["--suite", "aime", "--path", "a", "--set", "items=none"], "items: Input should be a valid integer"),
        (["--suite", "aime", "--path", "a", "--set", "check=none"], "The suite aime has no references"),
        (["--suite", "aime", "--path", "a", "--override", "a=b"], "--override with the --recipe that it changes"),
        (["third", "--suite", "aime"], "Give one model or two"),
    ],
)
def test_what_cannot_be_run_says_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert typed(tmp_path, MODEL_DIR, MODEL_DIR, *words) == 1
    assert says in capsys.readouterr().err
