"""The server of a slot, as a process over HTTP: it answers what the loop's own sampler answers."""

import json
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pipeline.core.processes import session_members
from pipeline.core.storage import model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.loaded import LoadedModel
from pipeline.serving.server_process import model_slot, server_process
from tests.fork_server import ForkServer
from tests.loop import forked
from tests.pipeline.core.tool_models import TOOL
from tests.processes import WITHIN_S, wait_for

pytestmark = pytest.mark.slow


PROMPTS = [p.prompt for p in problems(5, "heldout", 12)]


@pytest.fixture(scope="module")
def url(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with (
        forked(fork_server),
        model_slot("arithmetic", model_ref(MODEL_DIR), 32, tmp_path_factory.mktemp("slot")) as endpoint,
    ):
        yield endpoint.url


def asked(prompt: str, **more: Any) -> dict[str, Any]:
    return {"model": "arithmetic", "messages": [{"role": "user", "content": prompt}], **more}


def posted(url: str, body: dict[str, Any] | bytes) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    return httpx2.post(f"{url}/chat/completions", content=content, headers=headers, timeout=60)


def test_slot_answers_as_the_sampler_does_whatever_is_beside(url: str) -> None:
    with ThreadPoolExecutor(12) as pool:
        replies = [each.json() for each in pool.map(lambda n: posted(url, asked(PROMPTS[n], seed=n)), range(12))]
    requests = [
        AnswerRequest(key=str(n), messages=[{"role": "user", "content": prompt}], seed=n)
        for n, prompt in enumerate(PROMPTS)
    ]
    own = {a.key: a for a in LoadedModel(str(MODEL_DIR), 5).answers(requests, Sampling(max_completion_tokens=32))}
    for n, reply in enumerate(replies):
        choice, answer = reply["choices"][0], own[str(n)]
        assert (choice["message"]["content"], choice["finish_reason"]) == (answer.text, answer.stop)
        assert reply["usage"]["completion_tokens"] == answer.tokens
        assert reply["usage"]["prompt_tokens"] == answer.prompt_tokens


def test_slot_names_the_version_that_answered(url: str) -> None:
    digest = model_ref(MODEL_DIR).digest
    names = [model["id"] for model in httpx2.get(f"{url}/models").json()["data"]]
    assert names == [f"arithmetic@{digest[:12]}", "arithmetic"]
    assert posted(url, asked(PROMPTS[0])).json()["model"] == names[0]


def test_slot_ends_an_answer_at_its_own_limit(url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        short, long = pool.map(lambda n: posted(url, asked(PROMPTS[2], seed=1, max_tokens=n)).json(), (3, 32))
    assert (short["choices"][0]["finish_reason"], short["usage"]["completion_tokens"]) == ("length", 3)
    assert long["choices"][0]["message"]["content"].startswith(short["choices"][0]["message"]["content"])


def test_slot_cuts_an_answer_at_a_stop_text(url: str) -> None:
    whole, cut = (posted(url, asked(PROMPTS[2], seed=1, **more)).json() for more in ({}, {"stop": ["no", "####"]}))
    text, short = (each["choices"][0]["message"]["content"] for each in (whole, cut))
    assert "####" in text and short == text.partition("####")[0]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert cut["usage"]["completion_tokens"] < whole["usage"]["completion_tokens"]


def test_slot_draws_among_the_likely_tokens_alone(url: str) -> None:
    likeliest = posted(url, asked(PROMPTS[2], temperature=0)).json()["choices"][0]["message"]
    for seed in range(4):
        drawn = posted(url, asked(PROMPTS[2], seed=seed, temperature=3, top_p=1e-6)).json()["choices"][0]["message"]
        assert drawn == likeliest


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"{", 400, "JSON"),
        ({"model": "arithmetic", "messages": []}, 400, "messages"),
        ({"model": "other", "messages": [{"role": "user", "content": "x"}]}, 404, "arithmetic"),
        (asked("x", n=2), 400, "n:"),
        (asked("x", temperature=-1), 400, "temperature"),
        (asked("1 " * 4000), 400, "context"),
    ],
)
def test_slot_refuses_with_a_reason(url: str, body: Any, status: int, word: str) -> None:
    reply = posted(url, body)
    assert reply.status_code == status
    assert word in reply.json()["error"]["message"]


@pytest.mark.usefixtures("forking")
def test_slot_ends_with_its_block(tmp_path: Path) -> None:
    with model_slot("desk", model_ref(MODEL_DIR), 64, tmp_path / "slot") as endpoint:
        assert httpx2.get(endpoint.url.removesuffix("/v1") + "/health").status_code == 200
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{endpoint.url}/models")


def test_slot_refuses_tools_that_its_template_leaves_out(url: str) -> None:
    refused = posted(url, asked("1+1=", tools=[TOOL]))
    assert refused.status_code == 400 and "leaves out the definitions of tools" in refused.text


GRACE_S = 0.5


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("program", "timeout_s", "words"),
    [
        ("print('CUDA is nowhere', flush=True); raise SystemExit(7)", WITHIN_S,
         r"ended before its first answer \(exit code 7\)[^$]*CUDA is nowhere"),
        ("import time; print('no weights in sight', flush=True); time.sleep(600)", 0.1,
         r"raise evaluation\.serving\.start_timeout_s[^$]*no weights in sight"),
    ],
    ids=["ended", "too slow"],
)  # fmt: skip
def test_a_server_that_is_not_ready_shows_its_last_lines(
    program: str, timeout_s: float, words: str, tmp_path: Path
) -> None:
    with server_process("The server", python(program), {}, tmp_path, GRACE_S) as server:
        wait_for(lambda: "\n" in next(tmp_path.glob("*.log")).read_text())
        with pytest.raises(RuntimeError, match=words):
            server.await_health("http://127.0.0.1:1/health", timeout_s)


def test_a_secret_is_in_the_environment_and_in_no_argument(tmp_path: Path) -> None:
    shows = "import os, time; print(os.environ['KEY'], os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    with server_process("The server", python(shows), {"KEY": "sk-1"}, tmp_path, GRACE_S) as server:
        wait_for(lambda: "\n" in next(tmp_path.glob("*.log")).read_text())
        key, *pids = next(tmp_path.glob("*.log")).read_text().split()
        assert key == "sk-1" and not server.ended
        assert not [pid for pid in pids if b"sk-1" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert server.ended and session_members(int(pids[0])) == []
