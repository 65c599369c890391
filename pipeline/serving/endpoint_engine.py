"""Servers that others keep: any that speaks OpenAI's chat completions and draws by seed, which the probe conversations
prove before anything else is asked. Which weights it has is what the recipe says by a name."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from pipeline.core.storage import ModelRef, digest_json
from pipeline.recipe.serving import EndpointServing
from pipeline.serving.chat import ChatClient, ChatSession, ServedModel
from pipeline.serving.client import AskingLoop, open_asking_loop
from pipeline.serving.endpoint import Endpoint, check_endpoint
from pipeline.serving.inference import PROBES, Answer, AnswerRequest, Decoding, Sampling

PROBE_SAMPLING = Sampling(temperature=1.0, max_completion_tokens=16, skip_unanswerable=True)
PROBE_SEEDS = (20_011, 10_007)
ELSEWHERE = "Serve the models with one that does, or set evaluation.serving.kind to transformers or vllm."
"""What to do about a server that cannot be asked."""


class EndpointEngine:
    def __init__(
        self, settings: EndpointServing, endpoint: Endpoint, log: Callable[[str], None], backoff_s: float = 0.5
    ) -> None:
        check_endpoint(endpoint, "The evaluation's", "SERVING")
        self._settings, self._endpoint, self._log, self._backoff_s = settings, endpoint, log, backoff_s

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[ChatSession]:
        """Raises ValueError for a server that is none, RuntimeError for one that cannot be reached."""
        names = {"champion": self._settings.champion, "candidate": self._settings.candidate}
        if arm not in names:
            raise ValueError(
                f"evaluation.serving names no model for the {arm}. Ask an endpoint for {' or '.join(names)}."
            )
        served = ServedModel(self._endpoint, names[arm], f"evaluation.serving.{arm}")
        client = ChatClient(served, self._settings, backoff_s=self._backoff_s)
        with open_asking_loop(client, self._settings.in_flight) as loop:
            yield ChatSession(loop, self._decoding(loop), self._log)

    def _decoding(self, loop: AskingLoop[ChatClient]) -> Decoding:
        prompt_tokens = self._probe(loop)
        version, context = loop.all([loop.client.version, loop.client.context], lambda route: route(), None)
        return Decoding(
            engine="endpoint",
            version=str(version) or "unknown",
            device="unknown",
            dtype="unknown",
            stop_ids=(),
            context=context if isinstance(context, int) else None,
            tokens_digest=digest_json(["prompt_tokens", prompt_tokens]),
        )

    def _probe(self, loop: AskingLoop[ChatClient]) -> list[int | None]:
        """Tokens of each probe's prompt as the server counts them; None for one that its template refuses. Raises
        ValueError for a server whose replies are no answers, or that does not draw by seed."""
        first, again, other = (self._round(loop, seed) for seed in (PROBE_SEEDS[0], *PROBE_SEEDS))
        answered = [place for place, answer in enumerate(first) if answer.stop != "refused"]
        if not answered:
            raise ValueError(
                f"The server at {self._endpoint.url} answers none of the probe conversations: {first[0].detail}. "
                f"{ELSEWHERE}"
            )
        texts = [
            [answers[place].text or answers[place].detail for place in answered] for answers in (first, again, other)
        ]
        if texts[0] != texts[1] or texts[0] == texts[2]:
            how = "in two ways under one seed" if texts[0] != texts[1] else "in one way under two seeds"
            raise ValueError(
                f"The endpoint does not draw by seed: the server at {self._endpoint.url} answered {len(answered)} "
                f"questions {how} at temperature 1. {ELSEWHERE}"
            )
        return [None if answer.stop == "refused" else answer.prompt_tokens for answer in first]

    def _round(self, loop: AskingLoop[ChatClient], seed: int) -> list[Answer]:
        """Each probe under one seed."""
        requests = [AnswerRequest(key=str(place), messages=probe, seed=seed) for place, probe in enumerate(PROBES)]
        answers = loop.all(requests, lambda request: loop.client.draw(request, PROBE_SAMPLING), None)
        if failed := [answer for answer in answers if answer.stop == "error"]:
            raise ValueError(
                f"The server at {self._endpoint.url} cannot be asked: {failed[0].detail}. See to it, or set "
                f"SERVING_URL to one that answers. {ELSEWHERE}"
            )
        return answers
