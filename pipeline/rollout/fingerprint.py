"""What a slot really serves, told by what it answers: eight fixed prompts, greedily, sixteen tokens each.

The hashed files give the answers offline and the slot gives them over HTTP; a server's dtype, batch or merged adapter
may cost one of the eight. A server that silently serves the base instead of the tuned model answers as the base does
(vllm#34186). Behind one address there may be several servers, so such an address is asked in rounds, each over a
connection of its own. Refuses to decide where two models answer alike: a person has to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline.core.storage import ModelRef
from pipeline.serving.completion import read_completion
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Messages, Sampling
from pipeline.serving.sample import Sampler
from pipeline.serving.served_names import HEAD, served_name

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
"""Numbers, facts, style and language: tuning that moves none of these is asked about by nobody."""
TOKENS = 16
MIN_EQUAL = 7
"""Of the eight answers."""
ROUNDS = 3
"""How often an address is asked behind which a load balancer may choose among servers."""
TIMEOUT_S = 60.0
"""For one answer, of a server that may be busy."""

Fingerprint = tuple[str, ...]
"""The answers, in the order of the prompts."""
AnswerPrompt = Callable[[Messages], str]
"""Answers one conversation greedily, with at most TOKENS tokens."""


def fingerprint(answer: AnswerPrompt) -> Fingerprint:
    """What a model answers. Raises what `answer` does."""
    return tuple(answer([{"role": "user", "content": prompt}]) for prompt in PROMPTS)


def fingerprint_of_files(model: ModelRef, sample: Sampler) -> Fingerprint:
    """What a model's files answer, loaded here. Raises ValueError for one that cannot answer a prompt."""
    sampling = Sampling(temperature=0.0, max_completion_tokens=TOKENS)
    rows = sample(model, [[{"role": "user", "content": prompt}] for prompt in PROMPTS], sampling)
    for prompt, (answer,) in zip(PROMPTS, rows, strict=True):
        if answer.stop in ("error", "refused"):
            raise ValueError(
                f"Model {model.digest[:12]} does not answer {prompt!r} ({answer.detail}), so no slot that serves it "
                "can be recognised. Mend its chat template."
            )
    return tuple(answer.text for (answer,) in rows)


def fingerprint_over_http(endpoint: Endpoint, name: str) -> Fingerprint:
    """What a server answers for the model `name`, all over one connection: where connections are balanced, one server
    gives all answers. Raises as the answers of `answer_over_http`."""
    import httpx2

    with httpx2.Client(trust_env=False) as client:
        return fingerprint(answer_over_http(endpoint, name, client=client))


def answer_over_http(endpoint: Endpoint, name: str, timeout_s: float = TIMEOUT_S, client: Any = None) -> AnswerPrompt:
    """Asks a server for the model `name` (`<model>@<digest12>`). `client`: whose connection is used; None: a new one
    for each answer.

    The answer raises OSError when there is none and ValueError when it is refused or says that it is of another model.
    """
    import httpx2

    post: Any = client.post if client is not None else partial(httpx2.post, trust_env=False)
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    url = f"{endpoint.url.rstrip('/')}/chat/completions"

    def answer(messages: Messages) -> str:
        asked = {"model": name, "messages": messages, "temperature": 0, "max_tokens": TOKENS, "seed": 0}
        try:
            reply = post(url, json=asked, headers=headers, timeout=timeout_s)
        except httpx2.TransportError as error:
            raise ConnectionError(f"{endpoint.url} does not answer ({error or type(error).__name__})") from error
        if reply.status_code >= 500 or reply.status_code in (408, 429):
            raise ConnectionError(f"{endpoint.url} answers {reply.status_code}")
        if reply.status_code != 200:
            raise ValueError(f"{endpoint.url} answers {reply.status_code} to model {name}. Start it under that name.")
        completion = read_completion(reply.content)
        if completion.model != name:
            raise ValueError(f"{endpoint.url} answers for {completion.model}, not {name}. Start it under that name.")
        return completion.text

    return answer


class Prints(NamedTuple):
    """A model and what its files answer."""

    digest: str
    answers: Sequence[str]


def identified(served: Sequence[str], models: Sequence[Prints], named: str = "") -> str:
    """The digest of the one model whose answers these are. `named`: what the server calls itself, which decides among
    models that answer all prompts alike; whether they may be rolled out all the same, a person was asked before.

    Raises ValueError when it is none of them, or not one.
    """
    counts = {model.digest: _equal(served, model.answers) for model in models}
    best = max(counts.values(), default=0)
    nearest = [model for model in models if counts[model.digest] == best]
    if best < MIN_EQUAL:
        of = ", ".join(f"{count} are {digest[:HEAD]}'s" for digest, count in counts.items())
        raise ValueError(
            f"Of {len(served)} answers {of or 'none are known'}, {MIN_EQUAL} needed. Load the model again."
        )
    if len({tuple(model.answers) for model in nearest}) == 1 and named in {model.digest for model in nearest}:
        return named
    if len(nearest) > 1:
        names = " and ".join(model.digest[:HEAD] for model in nearest)
        raise ValueError(f"{best} of {len(served)} answers are those of {names}: compare the models by hand.")
    return nearest[0].digest


def identify_slot(
    endpoint: Endpoint, model_name: str, digest: str, models: Mapping[str, Sequence[str]], rounds: int = 1
) -> str:
    """The digest that a slot really serves, which was given `digest`. `models`: answers by digest. `rounds`: 1 for one
    server, ROUNDS for an address behind which there may be several.

    Raises ValueError saying why it is none of them, or more than one, OSError when it does not answer.
    """
    name = served_name(model_name, digest)
    asked = [fingerprint_over_http(endpoint, name) for _ in range(rounds)]
    return identified_rounds(asked, [Prints(each, answers) for each, answers in models.items()], digest)


def identified_rounds(asked: Sequence[Fingerprint], models: Sequence[Prints], named: str = "") -> str:
    """The digest of the one model that gave the answers of every round. Raises ValueError as `identified`, and where
    rounds are of different models, or answers change between them more than one model's do."""
    seen = sorted({identified(each, models, named) for each in asked})
    if len(seen) > 1:
        raise ValueError(
            f"The answers of {len(asked)} rounds are those of {' and '.join(each[:HEAD] for each in seen)}: the "
            "servers behind this address hold different models. Load one model on all of them."
        )
    steady = tuple(answers[0] if len(set(answers)) == 1 else "\0".join(answers) for answers in zip(*asked, strict=True))
    if _equal(steady, dict(models)[seen[0]]) < MIN_EQUAL:
        raise ValueError(
            f"The answers for {seen[0][:HEAD]} change between {len(asked)} rounds: the servers behind this address may "
            "hold different models. Load one model on all of them."
        )
    return seen[0]


def _equal(served: Sequence[str], other: Sequence[str]) -> int:
    """How many answers are the same. Answers of different length cannot be compared: none is."""
    return sum(a == b for a, b in zip(served, other, strict=True)) if len(served) == len(other) else 0
