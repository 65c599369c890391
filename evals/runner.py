"""The runner: one model answers every item of a suite, and every answer is graded. Answers in the journal are not asked
again."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from evals.records import EvalArm, EvalSample, ItemResult, Protocol
from evals.suites import Item, Suite
from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import SuiteSection
from pipeline.rewards.verifiers import VERSION, Grade, Outcome, VerifierTask
from pipeline.serving.inference import (
    Answer,
    AnswerProtocol,
    AnswerRequest,
    InferenceSession,
    Messages,
    Sampling,
    answer_key,
    answer_seed,
    open_journal,
)
from pipeline.traces.pii import personal_values
from pipeline.training.texts import refuses

Grader = Callable[[Sequence[VerifierTask]], list[Grade]]
"""Grades completions; the result follows the input."""
Log = Callable[[str], None]
UNCHECKED = Grade(Outcome.unchecked, "")


class Asked(NamedTuple):
    """One sample of one item, to be asked or found in the journal."""

    item: Item
    request: AnswerRequest


def sampling(section: Evaluation, suite: SuiteSection, seed: int = 0) -> Sampling:
    """How a suite is answered: both arms draw by the same seeds, which follow from `seed`."""
    return Sampling(
        samples=1 if suite.temperature == 0 else suite.samples_per_item or section.samples_per_item,
        temperature=section.temperature if suite.temperature is None else suite.temperature,
        max_completion_tokens=suite.max_completion_tokens or section.max_completion_tokens,
        seed=seed,
    )


class Respondent(NamedTuple):
    """A model that is asked: what answers for it, what grades it, and where its answers are kept."""

    model: ModelRef
    session: InferenceSession
    grader: Grader
    store: Store
    log: Log

    def run(self, suite: Suite, plan: Sampling) -> EvalArm:
        """`plan.samples` graded answers of every item. What is in the journal is not asked again.

        Raises what the session does, and ValueError when the grader answers with another number of grades than it was
        asked for: then nothing says which completion belongs to which item.
        """
        protocol = AnswerProtocol.under(self.session.decoding, plan)
        asked = questions(self.model.digest, suite, plan, protocol.digest())
        answers = self._answers(suite.name, asked, plan, protocol)
        return EvalArm(
            model=self.model,
            protocol=Protocol(
                suite=suite.name,
                suite_digest=suite.digest(),
                samples=plan.samples,
                verifier=VERSION,
                answers=protocol,
            ),
            results=graded(self.grader, suite, plan.samples, answers),
        )

    def _answers(self, name: str, asked: list[Asked], plan: Sampling, protocol: AnswerProtocol) -> list[Answer]:
        """In the order of what is asked."""
        errors: dict[str, Answer] = {}
        with open_journal(self.store, self.model.digest, protocol) as journal:
            todo = [each for each in asked if each.request.key not in journal.answers]
            kept = len(asked) - len(todo)
            self.log(f"evaluation: {name}: {len(todo):,} answers to be asked, {kept:,} in the journal")
            if todo:
                items = {each.request.key: each.item.id for each in todo}

                def keep(answer: Answer) -> None:
                    if answer.stop == "error":
                        errors[answer.key] = answer
                    else:
                        journal.add(items[answer.key], answer)

                self.session.answer([each.request for each in todo], plan, keep)
            answers = {**journal.answers, **errors}
        if lost := sum(each.request.key not in answers for each in asked):
            raise ValueError(f"The engine left {lost} of {len(todo)} questions without an answer. Evaluate again.")
        return [answers[each.request.key] for each in asked]


def questions(model: str, suite: Suite, plan: Sampling, protocol: str) -> list[Asked]:
    """What a model (by digest) is asked under a protocol (by digest): by item, then by sample."""
    asked: list[Asked] = []
    for item in suite.items:
        messages = suite.messages(item)
        for sample in range(plan.samples):
            key = answer_key(model, protocol, item.id, messages, sample)
            seed = answer_seed(plan.seed, item.id, sample)
            asked.append(Asked(item, AnswerRequest(key=key, messages=messages, seed=seed)))
    return asked


def graded(grader: Grader, suite: Suite, k: int, answers: Sequence[Answer]) -> tuple[ItemResult, ...]:
    """The answers, k to each item, with their grades.

    Raises ValueError where the grader returns another number of grades than it was asked for.
    """
    by_item = [(item, answers[place * k : (place + 1) * k]) for place, item in enumerate(suite.items)]
    tasks = [
        VerifierTask(answer.text, item.reference, item.check)
        for item, drawn in by_item
        if item.check != "none"
        for answer in drawn
    ]
    grades = grader(tasks)
    if len(grades) != len(tasks):
        raise ValueError(f"The grader returned {len(grades)} grades of {len(tasks)} pairs. Make it grade each.")
    in_order = iter(grades)
    return tuple(
        ItemResult(
            id=item.id,
            prompt_tokens=max(answer.prompt_tokens for answer in drawn),
            samples=tuple(
                _sample(suite, item, answer, UNCHECKED if item.check == "none" else next(in_order)) for answer in drawn
            ),
        )
        for item, drawn in by_item
    )


def _sample(suite: Suite, item: Item, answer: Answer, grade: Grade) -> EvalSample:
    return EvalSample(
        text=answer.text,
        tokens=answer.tokens,
        finished=answer.finished,
        outcome=Outcome.error if answer.stop == "error" else grade.outcome,
        answer="" if answer.stop == "error" else grade.answer,
        defects=defects(answer.text, suite.messages(item)),
    )


def defects(text: str, messages: Messages) -> tuple[str, ...]:
    """What is wrong with an answer whatever its reference: "pii" that `messages` do not hold, "refusal"."""
    given = "\n".join(f"{message['content']}\n{message.get('tool_calls', '')}" for message in messages)
    leaked = personal_values(text) - personal_values(given) if text else set[str]()
    return (*(("pii",) if leaked else ()), *(("refusal",) if refuses(text) else ()))
