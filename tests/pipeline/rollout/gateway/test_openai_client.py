"""OpenAI's own Python client against the gateway: answers, streams, errors, and its retries."""

import json
from collections.abc import Iterator

import openai
import pytest

from tests.pipeline.rollout.gateway.slot_server import response
from tests.pipeline.rollout.gateway.world import World, user_of

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is it?"}]
REFUSALS = {401: openai.AuthenticationError, 429: openai.RateLimitError, 503: openai.InternalServerError}
"""One of each class: the caller's fault, a limit, and the server's fault."""


@pytest.fixture
def client(gateway: World) -> Iterator[openai.OpenAI]:
    transport = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=f"{gateway.gateway.url}/v1", api_key="a-key", http_client=transport) as opened:
        yield opened


def refusal(status: int, **headers: str) -> bytes:
    error = {"message": "not now", "type": "tokens", "param": "messages", "code": "a_code"}
    return response(json.dumps({"error": error}).encode(), status, **headers)


@pytest.mark.situation("16-gateway-behind-nginx", "right")
def test_a_stream_is_read_piece_by_piece(gateway: World, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="any", messages=QUESTION, user=user_of("canary")) as pieces:
        words = [piece.delta for piece in pieces if piece.type == "content.delta"]
        whole = pieces.get_final_completion()
    assert words == ["", "It ", "is ", f"{gateway.canary.name}."]
    assert whole.choices[0].message.content == "".join(words)


@pytest.mark.parametrize("status", REFUSALS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
def test_a_refusal_of_the_model_keeps_its_kind(
    gateway: World, client: openai.OpenAI, status: int, streamed: bool
) -> None:
    gateway.champion.answer = lambda server, body: refusal(status)
    once = client.with_options(max_retries=0)
    with pytest.raises(REFUSALS[status]) as raised:
        once.chat.completions.create(model="any", messages=QUESTION, user=user_of("champion"), stream=streamed)
    assert (raised.value.status_code, raised.value.code, raised.value.param) == (status, "a_code", "messages")
    assert "not now" in str(raised.value) and raised.value.type == "tokens"
    assert gateway.request(raised.value.response).failed
