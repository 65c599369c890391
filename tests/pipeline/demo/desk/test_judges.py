"""The desk's judges pass the project's own admission, and end with the step that started them."""

import random
from pathlib import Path

import httpx2
import pytest

from pipeline.demo.desk import judges
from pipeline.demo.desk.conversation import statement
from pipeline.demo.desk.judges import DIGEST, JUDGES, judge_at
from pipeline.demo.desk.requests import Request, draw
from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge import Endpoint, JudgeRequest, open_judge

pytestmark = pytest.mark.slow

RUBRIC = "5: as the shop wants it.\n1: not."
NAMES = sorted(JUDGES)


def settings(model: str) -> Judge:
    return Judge(model=model, digest=DIGEST, rubric=RUBRIC)


def requests(count: int) -> list[Request]:
    rng = random.Random(5)
    return [draw(rng, "heldout") for _ in range(count)]


def fine(request: Request) -> str:
    return f"Hello! {statement(request.fact)} Good day!"


@pytest.mark.parametrize("model", NAMES)
def test_a_desk_judge_passes_the_projects_admission(model: str, tmp_path: Path) -> None:
    with judge_at(settings(model), None, tmp_path) as endpoint:
        assert endpoint is not None
        with open_judge(endpoint, settings(model)) as judge:
            assert judge.admit([]).attacks == 10


def test_the_judge_of_a_step_ends_with_it(tmp_path: Path) -> None:
    with judge_at(settings("desk-labels"), None, tmp_path) as endpoint:
        assert endpoint is not None
        with open_judge(endpoint, settings("desk-labels")) as judge:
            each = requests(1)[0]
            (said,) = judge.score([JudgeRequest(each.messages, f"{fine(each)} I add a voucher.")])
            assert said.score is not None
    with pytest.raises(httpx2.TransportError), httpx2.Client(trust_env=False) as client:
        client.get(endpoint.url.replace("/v1", "/health"))


def test_no_server_is_started_where_an_address_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "server_process", None)  # a call of it would raise
    given = Endpoint("http://127.0.0.1:1/v1")
    with judge_at(settings("desk-labels"), given, tmp_path) as endpoint:
        assert endpoint == given
    other = Judge(model="desk-labels", digest="sha256:of-another")
    with judge_at(other, None, tmp_path) as endpoint:
        assert endpoint is None
    with judge_at(None, None, tmp_path) as endpoint:
        assert endpoint is None
