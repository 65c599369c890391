"""`pt import openai-export`: the files of OpenAI's fine-tuning become a recipe and its suite."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.imports import main
from pipeline.recipe.suites import ItemsSuite

METRICS = b"step,train_loss,valid_loss\n1,2.5,\n2,1.5,1.75\n"
CALLED = {"id": "c", "type": "function", "function": {"name": "stock", "arguments": '{"id": "B2"}'}}
TOOL = {"type": "function", "function": {"name": "stock", "parameters": {"type": "object", "properties": {}}}}


def chat(question: str, **answer: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", **answer}]}


def preference(question: str, good: str, bad: str) -> dict[str, Any]:
    sides = {"preferred_output": good, "non_preferred_output": bad}
    outputs = {name: [{"role": "assistant", "content": text}] for name, text in sides.items()}
    return {"input": {"messages": [{"role": "user", "content": question}], "tools": []}, **outputs}


def graded(question: str, **fields: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": question}],
        **fields,
    }


def write(folder: Path, **files: list[Any]) -> Path:
    """Files of lines by their names, in which the last `_` stands for the dot."""
    folder.mkdir()
    for name, lines in files.items():
        text = "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def export(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[int, str, dict[str, Any], list[Any]]:
    """Exit code, what was printed, the recipe and the suite's items."""
    code = main(["openai-export", str(folder), "--write", "moved.yaml"])
    read = capsys.readouterr()
    if code == 2:
        return code, read.err, {}, []
    items = [json.loads(line) for line in Path("data/moved/suite.jsonl").read_text(encoding="utf-8").splitlines()]
    return code, read.out, yaml.safe_load(Path("moved.yaml").read_text(encoding="utf-8")), items


def test_chats_become_demonstrations_and_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    job = {
        "object": "fine_tuning.job",
        "id": "ftjob-1",
        "model": "gpt-4o-mini",
        "training_file": "file-a",
        "validation_file": "file-b",
        "user_provided_suffix": "shop v2",
        "seed": 7,
        "hyperparameters": {"n_epochs": 3, "batch_size": 2, "learning_rate_multiplier": 0.5},
    }
    rows = [chat(f"{n} * 8?", content=f"#### {8 * n}") for n in range(9)]
    called = {**chat("Is B2 there?", content=None, tool_calls=[CALLED]), "tools": [TOOL]}
    write(Path("export"), **{"file-a_jsonl": rows, "file-b_jsonl": [chat("2+2?", content="4", weight=1), called]},
          job_json=[job], result_csv=[base64.b64encode(METRICS).decode()])  # fmt: skip
    code, printed, recipe, items = export(capsys, Path("export"))
    assert code == 0, printed
    assert "metrics     result.csv: step 2, train_loss 1.5, valid_loss 1.75" in printed
    assert recipe["traces"]["source"] == {
        "kind": "demonstrations",
        "preset": "openai_finetune_sft",
        "uri": "export/file-a.jsonl",
        **dict.fromkeys(("licence", "consent", "day")),
    }
    assert (recipe["name"], recipe["base_model"]["name"]) == ("moved", "shop-v2")
    assert recipe["selection"] == {"method": "sft"}
    assert recipe["training"] == {"sft": {"steps": 14, "batch_size": 2, "learning_rate": 1e-4}, "seed": 7}
    assert [ItemsSuite.model_validate(each).check for each in recipe["evaluation"]["suites"]] == ["math"]
    assert items[0] == {"messages": [{"role": "user", "content": "2+2?"}], "reference": "4"}
    assert (items[1]["check"], json.loads(items[1]["reference"])[0]["function"]["name"]) == ("calls", "stock")
    assert items[1]["tools"] == [TOOL]


def test_preferences_become_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [preference(f"Is B{n} there?", "Yes, four.", "Maybe.") for n in range(4)]
    method = {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": "auto", "batch_size": 4}}}
    job = {"object": "fine_tuning.job", "id": "j", "model": "m", "method": method, "training_file": "train"}
    write(Path("export"), train_jsonl=rows, valid_jsonl=[preference("And C1?", "No.", "Yes.")], job_json=[job])
    code, printed, recipe, items = export(capsys, Path("export"))
    assert code == 0, printed
    assert recipe["traces"]["source"]["kind"] == "pairs"
    assert recipe["training"]["dpo"] == {"steps": 1, "batch_size": 4, "learning_rate": 5e-6, "beta": 0.2}
    assert items == [{"messages": [{"role": "user", "content": "And C1?"}], "reference": "No."}]
    assert recipe["evaluation"]["suites"][0]["check"] == "normalised"


def test_reinforcement_files_are_prompts_with_references(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [graded(f"{n} * 8?", answer={"number": 8 * n}, level="easy") for n in range(3)]
    grader = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
    method = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": {"eval_samples": 2}}}
    job = {"object": "fine_tuning.job", "id": "j", "model": "m", "method": method}
    write(Path("export"), train_jsonl=rows, valid_jsonl=[graded("9 * 8?", answer={"number": 72}, level="easy")],
          job_json=[job])  # fmt: skip
    code, printed, recipe, items = export(capsys, Path("export"))
    assert code == 1
    assert "left out    hyperparameter eval_samples: 2\nleft out    grader of type string_check\n" in printed
    assert recipe["traces"]["source"]["fields"] == {"prompt": "messages", "reference": "answer.number"}
    assert (recipe["samples"]["prompts"], recipe["rewards"]["verifier"]["kind"]) == (3, "math")
    assert items[0]["messages"][0] == {"role": "system", "content": "Be brief."} and items[0]["reference"] == 72


def test_long_answers_want_a_judge_and_more(capsys: pytest.CaptureFixture[str]) -> None:
    long = "Gift wrap costs three euros, and a card of your own is printed for two more."
    write(Path("export"), train_jsonl=[chat("Hi", content="Hello!")], valid_jsonl=[chat("Gift wrap?", content=long)])
    code, printed, recipe, items = export(capsys, Path("export"))
    suites = recipe["evaluation"]["suites"]
    assert [(each["kind"], each["role"]) for each in suites] == [("items", "report"), ("judged", "target")]
    assert code == 0 and "reference" not in items[0], printed
    assert "# CHANGE: a judge never decides alone." in Path("moved.yaml").read_text(encoding="utf-8")


def test_cut_empty_and_mixed_files_are_named_with_lines(capsys: pytest.CaptureFixture[str]) -> None:
    train = [chat("1+1?", content="2"), preference("x", "a", "b"), chat("2+2?", content="4"), '{"messages": [{"ro']
    valid = [chat("3+3?", content="6"), chat("3+3?", content="6"), chat("4+4?", content="8"), chat("5+5?", content="")]
    write(Path("export"), train_jsonl=train, valid_jsonl=valid, more_jsonl=[])
    code, printed, _, items = export(capsys, Path("export"))
    assert (code, len(items)) == (1, 2)
    assert [line.removeprefix("left out    ") for line in printed.splitlines() if line.startswith("left out")] == [
        "more.jsonl: empty",
        "train.jsonl, line 4: cut, or no JSON",
        "train.jsonl, line 2: openai_finetune_dpo among openai_finetune_sft",
        "valid.jsonl, row 2: it asks what another row asks",
        "valid.jsonl, row 4: no question, or no answer",
    ]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has no rows. Keep one training file"),
        ({"a_jsonl": [chat("a", content="b")], "b_jsonl": [chat("c", content="d")]}, "has a.jsonl, b.jsonl."),
        ({"train_jsonl": [{"text": "a"}]}, "train.jsonl is no fine-tuning file but corpus"),
        ({"train_jsonl": [graded("a", one=1, two=2)]}, "has one, two beside its messages"),
        ({"train_jsonl": [graded("a", one=1)], "job_json": ['{"object": "fi']}, "job.json is cut"),
    ],
)
def test_what_makes_no_recipe_is_refused(
    files: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, error, _, _ = export(capsys, write(Path("export"), **files))
    assert code == 2 and why in error, error
    assert not Path("moved.yaml").exists() and not Path("data").exists()


def test_nothing_is_written_over(capsys: pytest.CaptureFixture[str]) -> None:
    Path("moved.yaml").write_text("name: mine\n", encoding="utf-8")
    code, error, _, _ = export(capsys, write(Path("export"), train_jsonl=[chat("a", content="b")]))
    assert code == 2 and "moved.yaml is there already" in error
    assert Path("moved.yaml").read_text(encoding="utf-8") == "name: mine\n"
