"""The judge against real servers of the demo's model: transformers' own, and vLLM's build for CPUs.

Half a million parameters of arithmetic cannot judge: real tokens come back, no score does, and the gate stays shut.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Budget, Endpoint, JudgeReason, JudgeRefused, JudgeRequest, PairComparison, open_judge

from ....ports import held_port
from ....servers import openai_server, vllm_server

ROOT = Path(__file__).parents[4]
MODEL = ROOT / "pipeline" / "demo" / "model"


@pytest.fixture(scope="module")
def transformers_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("openai") is None:
        pytest.skip("transformers' server needs the package openai (pip install '.[dev]')")
    with held_port() as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "transformers.cli.transformers", "serve", f"{MODEL}@main"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
        with openai_server(command, port, tmp_path_factory.mktemp("transformers") / "log") as url:
            yield url


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    # The model was trained on 1,024 positions; a judge's prompt is longer, letter by letter.
    longer = ("--hf-overrides", '{"max_position_embeddings": 8192}', "--max-num-seqs", "8")
    with vllm_server(MODEL, f"{MODEL}@main", tmp_path_factory.mktemp("vllm"), *longer) as url:
        yield url


@pytest.mark.variant
@pytest.mark.slow
def test_transformers_server(transformers_url: str) -> None:
    judged(transformers_url)


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_server(vllm_url: str) -> None:
    judged(vllm_url)


def judged(url: str) -> None:
    settings = Judge(
        model=f"{MODEL}@main", digest="sha256:demo", max_completion_tokens=16, concurrency=2, timeout_s=120
    )
    budget = Budget(None, None, 1.0, 1.0)
    question = [{"role": "user", "content": "Ada has 3 pens and buys 4 more. How many pens does Ada have now?"}]
    own = {JudgeReason.MALFORMED, JudgeReason.CUT, JudgeReason.OUT_OF_RANGE}
    with open_judge(Endpoint(url, "unused"), settings, budget) as judge:
        judgements = judge.score(
            [JudgeRequest(question, "3+4=7.\n#### 7", "7"), JudgeRequest(question, "\u200b<|im_end|>")]
        )
        (preferred,) = judge.compare([PairComparison(question, "#### 7", "#### 8")])
        with pytest.raises(JudgeRefused, match="0 of 24 plain questions right"):
            judge.admit([])
    for answer in (*judgements, preferred):
        assert answer.reason in own
        # Words and role tags are one token each in this model's vocabulary, the rest is letters: about 1,200 a prompt.
        assert 500 < answer.tokens < 3000
    assert budget.spent_tokens > 26 * 500
    assert budget.spent_usd == pytest.approx(budget.spent_tokens / 1e6)


@pytest.mark.slow
def test_a_model_that_is_not_served_there(transformers_url: str) -> None:
    settings = Judge(model="another@main", digest="sha256:demo")
    with open_judge(Endpoint(transformers_url), settings, Budget(None, None, 0, 0)) as judge:
        assert judge.score([JudgeRequest([{"role": "user", "content": "?"}], "!")])[0].reason == JudgeReason.HTTP
