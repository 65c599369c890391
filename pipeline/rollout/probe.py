"""What a slot really serves, by its answers to eight prompts: a server may silently serve the base (vllm#34186). Dtype
and batch may cost one of the eight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from operator import eq
from typing import TYPE_CHECKING

from pipeline.core.conversation import to_request
from pipeline.core.storage import ModelRef
from pipeline.core.thoughts import without_opening
from pipeline.recipe import Recipe
from pipeline.rollout.fold import models_to_serve
from pipeline.rollout.record import Fingerprints, RolloutState
from pipeline.serving.client import read_completion
from pipeline.serving.endpoint import HEAD, Endpoint, digest_head, served_name, served_names
from pipeline.serving.inference import Sampling
from pipeline.serving.transformers_engine import Sampler, TransformersEngine, over

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
TOKENS = 16
"""Of an answer at most."""
TIMEOUT_S = 60.0
"""For one answer, of a server that may be busy or still compile."""

Fingerprint = tuple[str, ...]
"""The answers, in the order of the prompts."""


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
    completion = read_completion(reply.content) if status == 200 else None
    if completion is None or completion.model != name:
        problem = f"answers {status}" if completion is None else f"answers for {completion.model}"
        raise ValueError(f"{url} {problem} when it is asked for {name}. Start it under that name.")
    return without_opening(completion.text)


def fingerprint_of_files(model: ModelRef, sample: Sampler) -> Fingerprint:
    """What a model's files answer, loaded here. Raises ValueError for one that cannot answer a prompt."""
    sampling = Sampling(temperature=0.0, max_completion_tokens=TOKENS)
    rows = sample(model, [[{"role": "user", "content": prompt}] for prompt in PROMPTS], sampling)
    for prompt, (answer,) in zip(PROMPTS, rows, strict=True):
        if answer.stop in ("error", "refused"):
            failed = f"Model {model.digest[:12]} does not answer {prompt!r} ({answer.detail})"
            raise ValueError(f"{failed}, so no slot that serves it can be recognised. Mend its chat template.")
    return tuple(without_opening(answer.text) for (answer,) in rows)  # vLLM leaves the tag out


def fingerprints(recipe: Recipe, champion: ModelRef, candidate: ModelRef, log: Callable[[str], None]) -> Fingerprints:
    """What both models' files answer to the same prompts. Of models that this process does not load by itself there are
    none: their slots are told by the names that they give."""
    if recipe.evaluation.serving.kind != "transformers":
        log("The models are served by others: slots are told by their names, not by what they answer.")
        return Fingerprints()
    with over(TransformersEngine(recipe.evaluation.serving, log)) as sample:
        champion_answers, candidate_answers = (fingerprint_of_files(model, sample) for model in (champion, candidate))
    return Fingerprints(champion=champion_answers, candidate=candidate_answers)


def fingerprint_over_http(endpoint: Endpoint, name: str) -> Fingerprint:
    """What a server answers for the model `name` (`<model>@<digest12>`), all over one connection: one server gives all
    answers. Raises OSError without an answer, ValueError where it is refused or of another model."""
    import httpx2

    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    with httpx2.Client(timeout=TIMEOUT_S, headers=headers) as client:
        turns = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
        return tuple(_answer(client, endpoint.url, name, turn) for turn in turns)


def identified(served: Sequence[str], models: Mapping[str, Sequence[str]], named: str = "") -> str:
    """The digest of the one model whose answers these are. `named`: what the server calls itself, which decides among
    models that answer all prompts alike. Raises ValueError when it is none of them, or not one."""
    counts = {digest: sum(map(eq, served, answers)) for digest, answers in models.items()}
    if not any(count >= MIN_EQUAL for count in counts.values()):
        of = ", ".join(f"{count} are {digest[:HEAD]}'s" for digest, count in counts.items())
        raise ValueError(
            f"Of {len(served)} answers {of or 'none are known'}, {MIN_EQUAL} needed. Load the model again."
        )
    best = max(counts.values())
    nearest = [digest for digest in models if counts[digest] == best]
    if len({tuple(models[digest]) for digest in nearest}) == 1 and named in nearest:
        return named
    if len(nearest) > 1:
        names = " and ".join(digest[:HEAD] for digest in nearest)
        raise ValueError(f"{best} of {len(served)} answers are those of {names}: compare the models by hand.")
    return nearest[0]


REMEMBERED_S = 30.0
"""How long a slot is taken to serve what its fingerprint said."""


class SlotIdentity:
    """Tells a server's models by their fingerprints, where the proposal has those of both, else by the names that it
    gives. Remembered for REMEMBERED_S."""

    def __init__(self, model_name: str, rollout: Callable[[], RolloutState], champion: Callable[[], ModelRef]) -> None:
        self._model_name, self._rollout, self._champion = model_name, rollout, champion
        self._remembered: dict[tuple[str, str], tuple[float, list[str], str]] = {}

    def __call__(self, url: str, name: str = "") -> str:
        """The digest of what it serves under `name`. Raises ValueError for a server of no model that is wanted, OSError
        for one that is away."""
        names = served_names(Endpoint(url))  # each time: one that is away is known to be
        at, names_then, digest = self._remembered.get((url, name), (0.0, names, ""))
        if time.monotonic() - at > REMEMBERED_S or names_then != names:
            digest = self._identified(url, [name] if name in names else names)
            self._remembered[url, name] = time.monotonic(), names, digest
        return digest

    def _identified(self, url: str, names: list[str]) -> str:
        name, state = self._model_name, self._rollout()
        models = {model.digest: () for model in models_to_serve(state, self._champion(), time.time())}
        if state.proposal is not None:
            prints = state.proposal.fingerprints
            models |= {state.proposal.champion.digest: prints.champion}
            models |= {state.proposal.version.model.digest: prints.candidate}
        given = [digest for digest in models for each in names if digest.startswith(digest_head(each, name) or "-")]
        if not given:
            raise ValueError(f"{url} serves {', '.join(names) or 'nothing'}: none of it is a model that is wanted.")
        answers = {digest: fingerprint for digest, fingerprint in models.items() if fingerprint}
        if given[0] not in answers:
            return given[0]
        return identified(fingerprint_over_http(Endpoint(url), served_name(name, given[0])), answers, given[0])
