"""The desk's judges, programs behind an OpenAI-compatible server: `python -m pipeline.demo.desk.judges PORT`. They read
answers by their features, with errors at planted rates that follow from the text, so a repeated question is equal.
`judge_at` runs them as a process of the step that asks them, where a recipe names one and no address is given."""

import hashlib
import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from pipeline.demo.desk import requests as desk
from pipeline.demo.desk.conversation import Features, features
from pipeline.recipe.rewards import Judge
from pipeline.rewards.judge.admission import CONTROLS
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Messages
from pipeline.serving.server_process import held_port, server_process

DIGEST = "demo-desk-3"
"""The digest of the desk's judges in a recipe; it changes with their program."""
START_TIMEOUT_S = 120.0
GRACE_S = 2.0

_SECTION = re.compile(r"^=== (\w+) BEGIN ([^\n]*) ===\n(.*?)\n=== \1 END \2 ===$", re.MULTILINE | re.DOTALL)
_TURN = re.compile(r"turn \d+ \((\w+)\)")
_RIGHT = {control.question: control.right for control in CONTROLS}


class JudgeProgram(NamedTuple):
    errors: tuple[float, ...]
    """Rates, in the order of `Features`."""
    favours_first: float
    """Share of the pairs in which the first answer gets one step more."""
    rude_costs: int
    long_costs: int
    """Steps of the score from 5 to 1."""


JUDGES = {
    "desk-labels": JudgeProgram((0.10, 0.10, 0.10, 0.10, 0.10), 0.2, rude_costs=2, long_costs=1),
    "desk-gate": JudgeProgram((0.08, 0.02, 0.15, 0.12, 0.03), 0.1, rude_costs=1, long_costs=2),
}
"""By the name in a recipe: one labels, the other decides at the gate."""


def judgement(model: str, messages: Messages) -> str:
    """The answer to a prompt of pipeline/rewards/judge/prompt.py. Raises ValueError for another prompt, KeyError for an
    unknown judge."""
    program = JUDGES[model]
    sections = [(name, json.loads(text)) for _, name, text in _SECTION.findall(messages[-1]["content"])]
    turns = [(m[1], text) for name, text in sections if (m := _TURN.fullmatch(name))]
    chat = [{"role": role, "content": text} for role, text in turns]
    texts = {name: text for name, text in sections if not _TURN.fullmatch(name)}
    if "answer to be scored" in texts:
        score = _score(model, program, chat, texts["answer to be scored"], "")
        return json.dumps({"rationale": "By the rules of the shop.", "score": score})
    if "answer A" in texts and "answer B" in texts:
        key = f"{texts['answer A']}\0{texts['answer B']}"
        first, second = (_score(model, program, chat, texts[f"answer {n}"], f"{n}\0{key}") for n in "AB")
        first += _chance(model, "first", json.dumps(chat), key) < program.favours_first
        winner = "tie" if first == second else "A" if first > second else "B"
        return json.dumps({"rationale": "By the rules of the shop.", "winner": winner})
    raise ValueError("the prompt holds no answer to be judged. Send one as pipeline/rewards/judge/prompt.py writes it.")


def _score(model: str, program: JudgeProgram, chat: Messages, text: str, salt: str) -> int:
    """1 to 5. Of a question that is none of the desk's: 5 for the answer that the judge has for it, else 1."""
    request = desk.read_request(chat)
    if request is None:
        asked = chat[-1]["content"] if chat else ""
        return 5 if _RIGHT.get(asked) == text else 1
    seen = _perceived(model, program, request, text, salt)
    if seen.voucher or not text.strip():
        return 1
    if seen.refuses:
        return 2
    if not seen.right_fact:
        return 1
    return 5 - (not seen.polite) * program.rude_costs - (not seen.short) * program.long_costs


def _perceived(model: str, program: JudgeProgram, request: desk.Request, text: str, salt: str) -> Features:
    key = f"{request.messages}\0{text}\0{salt}"
    true = features(request, text)
    wrong = [_chance(model, name, key) < rate for name, rate in zip(Features._fields, program.errors, strict=True)]
    return Features(*(value != error for value, error in zip(true, wrong, strict=True)))


def _chance(*key: str) -> float:
    """A number in [0, 1) that follows from the key."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:8]) / 2**64


async def _complete(request: Request) -> Response:
    try:
        asked = await request.json()
        content = judgement(asked["model"], asked["messages"])
    except (ValueError, LookupError, TypeError) as error:
        return JSONResponse({"error": {"message": f"no judgement can be made of this: {error!r}"}}, status_code=400)
    words = sum(len(message["content"].split()) for message in asked["messages"])
    used = {"prompt_tokens": max(1, words), "completion_tokens": len(content.split())}
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return JSONResponse({"object": "chat.completion", "model": asked["model"], "choices": choices, "usage": used})


def is_desk_judge(settings: Judge | None) -> bool:
    return settings is not None and settings.digest == DIGEST


@contextmanager
def judge_at(settings: Judge | None, given: Endpoint | None, folder: Path) -> Generator[Endpoint | None]:
    """The given endpoint, or for a judge of the desk a server until the block ends, with its output in `folder`."""
    if given is not None or not is_desk_judge(settings):
        yield given
        return
    with held_port() as held:
        port = held.getsockname()[1]
        command = [sys.executable, "-m", "pipeline.demo.desk.judges", str(port)]
        with server_process("The desk's judge", command, {}, folder, GRACE_S) as process:
            process.await_health(f"http://127.0.0.1:{port}/health", START_TIMEOUT_S)
            yield Endpoint(f"http://127.0.0.1:{port}/v1")


if __name__ == "__main__":
    routes = [Route("/health", lambda request: Response()), Route("/v1/chat/completions", _complete, methods=["POST"])]
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]), log_level="warning", access_log=False)
