"""A judge on 127.0.0.1 that answers the questions about passages by counting shared words, or as a test says."""

from __future__ import annotations

import json
import re
from typing import Any

from pipeline.recipe.rewards import Rag
from pipeline.rewards.judge import Endpoint
from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.rag import RagFinding, Retrieved, open_rag

from .judge.endpoint import Answer, Request, Said, Server, completion, parts

GOOD = "Einstein developed the theory of relativity in Bern."
BAD = "Chocolate volcanoes dance under purple moons."
ROW = Retrieved(
    question="Who developed the theory of relativity?",
    contexts=["Albert Einstein developed the theory of relativity while working in Bern."],
    completion=GOOD,
    reference="Einstein developed relativity in Bern.",
)
GRADER = "grader"
STOPWORDS = frozenset({"the", "a", "an", "of", "is", "was", "in", "and", "to", "what", "it", "by", "who"})


def form_of(request: Request) -> str:
    return str(request.body["response_format"]["json_schema"]["name"])


def said(value: Any, **more: Any) -> Said:
    """The grader's answer; 110 tokens each."""
    content = value if isinstance(value, str) else json.dumps(value)
    return completion(content, **{"model": GRADER, "usage": (100, 10), **more})


def marks(*values: Any) -> dict[str, Any]:
    return {"verdicts": [{"number": n, "reason": "words", "mark": mark} for n, mark in enumerate(values, start=1)]}


def reader(server: Server, request: Request, place: int) -> Said:
    """What a careful reader would say who knows no more than words: a claim is supported where its words stand."""
    data = parts(request)
    passages = " ".join(text for name, text in data.items() if name.startswith("passage"))
    match form_of(request):
        case "statements":
            return said({"statements": sentences(data["text"])})
        case "support":
            return said(marks(*(supported(data[name], passages) for name in numbered(data, "statement"))))
        case "guesses":
            guesses = [
                f"{start} {data['answer']}?" for start in ("What is it that", "Is it true that", "Who says that")
            ]
            return said({"evasive": int("don't know" in data["answer"]), "questions": guesses})
        case "likeness":
            question = data["question of the user"]
            return said(marks(*(1 + 4 * supported(question, data[name]) for name in numbered(data, "guess"))))
        case "usefulness":
            return said({"reason": "words", "mark": supported(data["answer"], passages)})
        case other:
            raise AssertionError(other)


def scripted(**answers: list[Any]) -> Answer:
    """For each form its answers, one after the other; the last one stays. Other forms are the reader's."""
    places = dict.fromkeys(answers, 0)

    def answer(server: Server, request: Request, place: int) -> Said:
        form = form_of(request)
        if form not in answers:
            return reader(server, request, place)
        chosen = answers[form][min(places[form], len(answers[form]) - 1)]
        places[form] += 1
        return chosen if isinstance(chosen, Said) else said(chosen)

    return answer


def numbered(data: dict[str, str], name: str) -> list[str]:
    return [part for part in data if re.fullmatch(rf"{name} \d+", part)]


def sentences(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if part.strip()]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", text.lower())) - STOPWORDS


def supported(claim: str, context: str) -> int:
    return int(len(words(claim) & words(context)) >= 0.6 * len(words(claim)))


def unlimited() -> Budget:
    """Dollars are counted and nothing is limited."""
    return Budget(None, None, 1.0, 2.0)


def findings_of(server: Server, *rows: Retrieved, budget: Budget | None = None, **settings: Any) -> list[RagFinding]:
    """The rows' findings by a session of its own."""
    asked = Rag(model=GRADER, **settings)
    with open_rag(Endpoint(server.url, "secret"), asked, budget or unlimited(), lambda line: None) as rag:
        return rag.score(rows)
