"""What a slot really serves and whether it may have users, by asking its servers. The fingerprint: answers to eight
prompts, since a server may silently serve the base (vllm#34186), and cost one of the eight by its dtype or batch. The
warm-up: recent prompts of production, whose answers are dropped."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from pipeline.core.conversation import to_request
from pipeline.core.storage import ModelRef
from pipeline.serving.client import read_completion
from pipeline.serving.endpoint import HEAD, Endpoint, served_name
from pipeline.serving.inference import Sampling
from pipeline.serving.transformers_engine import Sampler

if TYPE_CHECKING:
    import httpx2

PROMPTS = (
    "What is 12 and 30?",
    "Ada has 31 apples and buys 27 more. How many apples does Ada have now?",
    "Ben packs 6 bags of 9 pens and sells 7 of them. How many pens are left?",
    "Name three colours of the rainbow.",
    "Continue: one, two, three,",
    "Write a short greeting to a new colleague.",
    "Translate to French: The house is small.",
    "Which is larger, 9.11 or 9.9?",
)
"""Of the fingerprint: numbers, facts, style and language; most tuning moves one of these."""
MIN_EQUAL = 7
"""Of the eight answers."""
ROUNDS = 3
"""How often an address is asked behind which a load balancer may choose among servers."""
WARM_UP_PROMPTS, AT_ONCE = 32, 8
TOKENS = 16
"""Of an answer at most."""
TIMEOUT_S = 60.0
"""For one answer, of a server that may be busy or still compile."""

Fingerprint = tuple[str, ...]
"""The answers, in the order of the prompts."""


class PromptRefused(ValueError):
    """A prompt that the server does not take, such as one that is too long: a user's would not be answered either."""


def _answer(client: httpx2.Client, url: str, name: str, messages: Sequence[Mapping[str, str]]) -> str:
    """What the server answers for the model `name`. Raises OSError without an answer, ValueError where it is refused or
    of another model."""
    import httpx2

    asked = {"model": name, **to_request(messages), "temperature": 0, "max_tokens": TOKENS, "seed": 0}
    try:
        reply = client.post(f"{url.rstrip('/')}/chat/completions", json=asked)
    except httpx2.TransportError as error:
        raise ConnectionError(f"{url} does not answer ({error or type(error).__name__})") from error
    status = reply.status_code
    if status >= 500 or status in (408, 429):
        raise ConnectionError(f"{url} answers {status}")
    if status in (400, 413, 422):
        raise PromptRefused(f"{url} answers {status} when it is asked for {name}.")
    completion = read_completion(reply.content) if status == 200 else None
    if completion is None or completion.model != name:
        problem = f"answers {status}" if completion is None else f"answers for {completion.model}"
        raise ValueError(f"{url} {problem} when it is asked for {name}. Start it under that name.")
    return completion.text


def fingerprint_of_files(model: ModelRef, sample: Sampler) -> Fingerprint:
    """What a model's files answer, loaded here. Raises ValueError for one that cannot answer a prompt."""
    sampling = Sampling(temperature=0.0, max_completion_tokens=TOKENS)
    rows = sample(model, [[{"role": "user", "content": prompt}] for prompt in PROMPTS], sampling)
    for prompt, (answer,) in zip(PROMPTS, rows, strict=True):
        if answer.stop in ("error", "refused"):
            failed = f"Model {model.digest[:12]} does not answer {prompt!r} ({answer.detail})"
            raise ValueError(f"{failed}, so no slot that serves it can be recognised. Mend its chat template.")
    return tuple(answer.text for (answer,) in rows)


def fingerprint_over_http(endpoint: Endpoint, name: str) -> Fingerprint:
    """What a server answers for the model `name` (`<model>@<digest12>`), all over one connection: one server gives all
    answers. Raises OSError without an answer, ValueError where it is refused or of another model."""
    import httpx2

    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    with httpx2.Client(trust_env=False, timeout=TIMEOUT_S, headers=headers) as client:
        turns = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        return tuple(_answer(client, endpoint.url, name, turn) for turn in turns)


def identify_slot(
    endpoint: Endpoint, model_name: str, digest: str, models: Mapping[str, Sequence[str]], rounds: int = 1
) -> str:
    """The digest that a slot really serves, which was given `digest`. `models`: answers by digest. `rounds`: ROUNDS for
    an address behind which there may be several servers. Raises ValueError, or OSError when it does not answer."""
    name = served_name(model_name, digest)
    return identified_rounds([fingerprint_over_http(endpoint, name) for _ in range(rounds)], models, digest)


def identified_rounds(asked: Sequence[Fingerprint], models: Mapping[str, Sequence[str]], named: str = "") -> str:
    """The digest of the one model that gave the answers of every round. Raises ValueError as `identified`, and where
    rounds are of different models, or answers change between them more than one model's do."""
    seen = sorted({identified(each, models, named) for each in asked})
    steady = tuple(answers[0] if len(set(answers)) == 1 else "\0".join(answers) for answers in zip(*asked, strict=True))
    if len(seen) == 1 and _equal(steady, models[seen[0]]) >= MIN_EQUAL:
        return seen[0]
    said = f"are those of {' and '.join(each[:HEAD] for each in seen)}" if len(seen) > 1 else "change"
    raise ValueError(
        f"The answers of {len(asked)} rounds {said}: the servers behind this address hold different models. Load one "
        "model on all of them."
    )


def identified(served: Sequence[str], models: Mapping[str, Sequence[str]], named: str = "") -> str:
    """The digest of the one model whose answers these are. `named`: what the server calls itself, which decides among
    models that answer all prompts alike. Raises ValueError when it is none of them, or not one."""
    counts = {digest: _equal(served, answers) for digest, answers in models.items()}
    best = max(counts.values(), default=0)
    nearest = [digest for digest in models if counts[digest] == best]
    if best < MIN_EQUAL:
        of = ", ".join(f"{count} are {digest[:HEAD]}'s" for digest, count in counts.items())
        raise ValueError(
            f"Of {len(served)} answers {of or 'none are known'}, {MIN_EQUAL} needed. Load the model again."
        )
    if len({tuple(models[digest]) for digest in nearest}) == 1 and named in nearest:
        return named
    if len(nearest) > 1:
        names = " and ".join(digest[:HEAD] for digest in nearest)
        raise ValueError(f"{best} of {len(served)} answers are those of {names}: compare the models by hand.")
    return nearest[0]


def _equal(served: Sequence[str], other: Sequence[str]) -> int:
    """How many answers are the same. Answers of different length cannot be compared: none is."""
    return sum(a == b for a, b in zip(served, other, strict=True)) if len(served) == len(other) else 0


def newest(rows: Sequence[Mapping[str, Any]], agreed: Collection[tuple[str, str]]) -> list[tuple[str, str]]:
    """(trace_id, observation_id) of the newest prompts of those who agree. `rows`: labels with those columns, consent
    and timestamp."""
    ids = [(row["timestamp"], (row["trace_id"], row["observation_id"])) for row in rows if row["consent"]]
    return [id for _, id in sorted(ids, reverse=True) if id in agreed][:WARM_UP_PROMPTS]


def warm_up(servers: Sequence[str], name: str, prompts: Sequence[str]) -> str:
    """Ask each server all prompts; why the slot is not ready for users, or "". `servers`: root URLs. `name`: what they
    serve the model as. `prompts`: chat messages as JSON, as labels have them."""
    import httpx2

    for url in servers:
        # Over several connections: where a balancer stands before a slot, it has something to balance.
        with httpx2.Client(timeout=TIMEOUT_S, trust_env=False) as client, ThreadPoolExecutor(AT_ONCE) as pool:
            asked = [pool.submit(_answer, client, url, name, json.loads(prompt)) for prompt in prompts]
        raised = [each.exception() for each in asked]
        failed = [error for error in raised if error is not None and not isinstance(error, PromptRefused)]
        if failed:
            return f"warm-up: {len(failed)} of {len(prompts)} recent prompts got no answer, first: {failed[0]}"
        if prompts and None not in raised:
            return f"warm-up: {url} takes none of {len(prompts)} recent prompts. Look at its limits and chat template."
    return ""
