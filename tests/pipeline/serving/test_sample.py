"""The sampler over a counted engine: which sessions it opens, and what it asks them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from pipeline.core.storage import ModelRef
from pipeline.serving.inference import Answer, AnswerRequest, Messages, Sampling, answer_seed
from pipeline.serving.transformers_engine import over

ONE, OTHER = (ModelRef(uri=f"/{name}", digest=name * 64) for name in "ab")
PROMPTS: list[Messages] = [[{"role": "user", "content": "Same?"}]] * 2
TWICE = Sampling(samples=2, seed=7)


class Engine:
    """Answers with the seed that it was asked with, and notes what was opened and closed."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[Any]:
        self.events.append(f"open {model.uri}")
        yield self
        self.events.append(f"close {model.uri}")

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        self.events.append(f"answer {len(requests)}")
        for each in reversed(requests):
            done(Answer(key=each.key, text=str(each.seed), tokens=1, prompt_tokens=1, stop="stop", latency_s=0.0))


def test_answers_follow_their_prompts_each_with_its_own_seed() -> None:
    with over(Engine()) as sample:
        drawn = sample(ONE, PROMPTS, TWICE)
    seeds = [[str(answer_seed(7, str(place), n)) for n in range(2)] for place in range(2)]
    assert [[answer.text for answer in answers] for answers in drawn] == seeds


def test_a_model_that_is_asked_again_is_opened_once() -> None:
    engine = Engine()
    with over(engine) as sample:
        sample(ONE, [], TWICE)
        assert engine.events == [], "no session is opened without prompts"
        for model in (ONE, ONE, OTHER, ONE):
            sample(model, PROMPTS, TWICE)
    opened = [["open /a", "answer 4", "answer 4", "close /a"], ["open /b", "answer 4", "close /b"]]
    assert engine.events == [*opened[0], *opened[1], "open /a", "answer 4", "close /a"]
