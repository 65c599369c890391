"""`pt import`: what it says of files, how it counts their rows, and the section that it writes."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from jobs.imports import format_list, main
from pipeline.recipe import load

ROOT = Path(__file__).parents[2]


def call(n: int, **changes: Any) -> dict[str, Any]:
    """A call in LiteLLM's log."""
    return {
        "id": f"call-{n}",
        "call_type": "acompletion",
        "startTime": 1767607200.0 + n,
        "endTime": 1767607201.0 + n,
        "model_group": "shop",
        "status": "success",
        "end_user": f"user-{n}",
        "messages": [{"role": "user", "content": f"Is order {n} of ada@example.com here?"}],
        "response": {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]},
        "metadata": {"requester_metadata": {"user_consent": "true"}},
        **changes,
    }


def write(path: Path, *rows: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    return code, " ".join(capsys.readouterr().out.split())


def test_known_rows_are_counted_shown_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    failed = call(2, status="failure", error_str="no model", response={})
    calls = write(tmp_path / "logs" / "a.jsonl", call(1), failed, call(3, end_user="", metadata={}))
    code, text = told(capsys, calls.parent)
    assert code == 0
    assert "format litellm: LiteLLM, StandardLoggingPayload" in text
    assert "of the first 3, 2 can be learned from, given consent, error 1" in text
    assert "without consent 1 of 3. A row without a yes is not trained on." in text
    assert "without user 1 of 3." in text and "without time" not in text
    assert "Is order 1 of [EMAIL] here? -> Yes." in text and "ada@" not in text
    assert "consent: null # true: a person declares that" in text and "day" not in text.partition("traces:")[2]
    code, text = told(capsys, calls.parent, "--json")
    assert (code, json.loads(text)) == (
        0,
        {
            "format": "litellm",
            "kind": "rows",
            "rows": 3,
            "answered": 2,
            "without": {"time": 0, "consent": 1, "user": 1},
        },
    )


def test_a_bucket_with_an_object_for_each_call_is_sampled(capsys: pytest.CaptureFixture[str], bucket: str) -> None:
    client = boto3.client("s3")
    for n in range(150):
        metadata = {} if n % 2 else call(n)["metadata"]
        body = json.dumps(call(n, metadata=metadata)).encode()
        client.put_object(Bucket=bucket, Key=f"logs/2026-01-05/time-10-00-{n:03}_chatcmpl-{n}.json", Body=body)
    code, text = told(capsys, f"s3://{bucket}/logs")
    assert code == 0 and "files 19 of 150 were looked at" in text
    assert "of the first 100, 100 can be learned from" in text and "without consent 50 of 100." in text


def test_a_batch_is_joined_to_its_requests(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    answer = {"id": "b", "custom_id": "r1", "response": {"status_code": 200, "body": {**ANSWER, "created": 1767607200}}}
    write(tmp_path / "output.jsonl", answer)
    code, text = told(capsys, tmp_path)
    assert (
        code == 0 and "0 can be learned from" in text and "requests: null # the file or folder of the requests" in text
    )
    request = {"custom_id": "r1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
    write(tmp_path / "input.jsonl", request)
    code, text = told(capsys, tmp_path)
    assert code == 0 and "of the first 1, 1 can be learned from" in text and "Is B2 in stock? -> Yes." in text
    assert f"uri: {tmp_path}/output.jsonl requests: {tmp_path}/input.jsonl" in text


MESSAGES = [{"role": "user", "content": "Is B2 in stock?"}]
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}], "model": "shop"}
FORMATS = ROOT / "tests" / "pipeline" / "traces" / "sources" / "formats"


@pytest.mark.parametrize("name", ["vertex", "kong"])
def test_logged_calls_are_read_by_their_preset(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What each preset makes of its rows is in `tests/pipeline/traces/sources/test_formats.py`."""
    code, text = told(capsys, FORMATS / f"{name}.jsonl")
    assert code == 0 and f"preset: {name}" in text and "can be learned from" in text


def test_what_no_source_reads_says_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("INFO 01-05 10:00:00 [logger.py:39] Received request chatcmpl-1: prompt: 'Hi'\n")
    code, text = told(capsys, log)
    assert code == 1 and "vllm_log: vLLM's server log These are server text logs: they hold no answers" in text
    assert "traces:" not in text
    write(tmp_path / "odd.jsonl", {"kind": "beam", "length": 3})
    code, text = told(capsys, tmp_path / "odd.jsonl", "--json")
    assert (code, json.loads(text)) == (1, {"format": "unknown", "kind": "unknown", "rows": 1})
    assert "its rows have kind, length" in told(capsys, tmp_path / "odd.jsonl")[1]


@pytest.mark.parametrize("words", [["/nowhere"], ["a", "b"], []])
def test_a_wrong_command_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2 and capsys.readouterr().err


def test_what_annotators_rated_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    task = {"id": 1, "data": {"prompt": "Is B2 in stock?", "response": "Yes."}}
    result = [{"type": "rating", "value": {"rating": 2}}]
    (tmp_path / "ratings.json").write_text(json.dumps([{**task, "annotations": [{"result": result}]}]))
    code, text = told(capsys, tmp_path / "ratings.json")
    assert code == 0 and "preset: label_studio_rating" in text and "Is B2 in stock? -> Yes. (reward 0.25)" in text
    (tmp_path / "labels.json").write_text(json.dumps([{**task, "annotations": [{"result": [{"value": {}}]}]}]))
    code, text = told(capsys, tmp_path / "labels.json")
    assert code == 1 and "unknown: its rows have id, data, annotations. Say in fields where a row has what" in text


def test_mixed_folders_are_taken_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path / "calls" / "a.jsonl", call(1), call(2))
    write(tmp_path / "calls" / "b.jsonl", call(3))
    write(tmp_path / "sums" / "c.jsonl", {"question": "7 * 8?", "answer": "56"})
    code, text = told(capsys, tmp_path)
    assert code == 0 and "other format sums/c.jsonl: gsm8k" in text and f"uri: {tmp_path}/calls" in text
    write(tmp_path / "calls" / "c.jsonl", {"question": "7 * 8?", "answer": "56"})
    code, text = told(capsys, tmp_path)
    assert code == 1 and "Give each format a folder of its own." in text


def test_an_export_is_read_from_the_folder_above(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    observation = {
        "id": "o",
        "trace_id": "t",
        "type": "GENERATION",
        "start_time": "2026-01-05 10:00:00.000000",
        "provided_model_name": "shop",
        "input": "Hi",
        "output": "Hello!",
    }
    write(tmp_path / "observations_v2" / "a.jsonl", observation)
    write(
        tmp_path / "scores" / "a.jsonl",
        {"id": "s", "trace_id": "t", "name": "thumb", "source": "API", "data_type": "NUMERIC", "value": 1},
    )
    for place in (tmp_path, tmp_path / "observations_v2", tmp_path / "observations_v2" / "a.jsonl"):
        code, text = told(capsys, place)
        assert code == 0 and text.endswith(f"source: kind: langfuse_export uri: {tmp_path}"), text


def test_problems_want_licence_consent_and_day(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sums = write(tmp_path / "sums.jsonl", {"question": "7 * 8?", "answer": "56"}, {"question": "", "answer": "1"})
    assert main([str(sums)]) == 0
    text, _, section = capsys.readouterr().out.partition("\n\n")
    text = " ".join(text.split())
    assert "of the first 2, 1 can be learned from, given consent, schema 1 (without a problem)" in text
    assert "without time 1 of 2." in text and "without consent 1 of 2." in text
    assert yaml.safe_load(section)["traces"]["source"] == {
        "kind": "prompts",
        "uri": str(sums),
        "fields": {"prompt": "question", "reference": "answer"},
        "licence": None,
        "consent": None,
        "day": None,
    }


def test_the_section_is_put_into_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "my.yaml"
    recipe.write_text((ROOT / "jobs" / "recipes" / "own.yaml").read_text(encoding="utf-8"))
    calls = write(tmp_path / "a.jsonl", call(1))
    code, text = told(capsys, calls, "--write", recipe)
    assert code == 0 and "traces.source was source: # CHANGE" in text
    assert "kind: langfuse_export uri: /exports/langfuse" in text
    read = load(str(recipe), [])
    assert (read.traces.source.kind, read.traces.source.uri) == ("rows", str(calls))
    before = (ROOT / "jobs" / "recipes" / "own.yaml").read_text(encoding="utf-8").splitlines()
    kept = [line for line in recipe.read_text(encoding="utf-8").splitlines() if line in before]
    assert [line for line in before if line not in kept] == [
        "  source: # CHANGE: a kind of docs/traces.md",
        "    kind: langfuse_export",
        "    uri: /exports/langfuse # above observations_v2/ and scores/; or s3://bucket/prefix",
    ]
    recipe.write_text("name: x\n")
    assert main([str(calls), "--write", str(recipe)]) == 2
    assert "has no traces.source" in capsys.readouterr().err


def test_the_page_of_formats_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert (ROOT / "docs" / "formats.md").read_text(encoding="utf-8") == capsys.readouterr().out == f"{format_list()}\n"
