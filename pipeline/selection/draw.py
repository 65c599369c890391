"""Fresh samples: the record and table of them; which logged prompts are sampled, and their completions, each in a
journal by model and protocol as soon as drawn."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pydantic import Field

from pipeline.core import layout
from pipeline.core.removal import Removal
from pipeline.core.storage import DatasetRef, ModelRef, Record, Store
from pipeline.recipe.selection import Samples
from pipeline.rewards.records import LABELS
from pipeline.rewards.samples import RewardSample
from pipeline.selection.pairing import LabelledRow, by_prompt
from pipeline.serving import inference
from pipeline.serving.inference import (
    Answer,
    AnswerProtocol,
    AnswerRequest,
    InferenceSession,
    Sampling,
    answer_key,
    answer_seed,
    open_journal,
)
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import user_hash

SAMPLES = pa.schema(
    [
        *LABELS,  # of the row that the prompt is from; completion, components and reward are the sample's
        ("reward_model", pa.float64()),  # its word, whether or not it counts in the reward
        ("sample", pa.int64()),  # its number among those of its prompt, from 0
        ("finished", pa.bool_()),  # whether it ended by itself
        ("completion_tokens", pa.int64()),
    ]
)
"""One row a completion."""
UNENDED = "unended"
"""Outcome of a completion that was cut at its limit and that no reference can check: it is worth 0."""


class FreshSamples(Record):
    """The samples of one iteration; empty without a section `samples` in the recipe."""

    iteration: str
    dataset: DatasetRef | None = None
    """`uri` is a Parquet file with the columns of SAMPLES."""
    model: ModelRef | None = None
    """The champion."""
    prompts: int = 0
    refused: int = 0
    """Prompts longer than the model's context, or not rendered by its chat template."""
    drawn: int = 0
    """Completions asked for by this run of the stage; `remembered` were in the journal."""
    remembered: int = 0
    labelled: int = 0
    unlabelled: dict[str, int] = Field(default={})
    """Completions without a reward, by reason."""
    outcomes: dict[str, int] = Field(default={})
    mean_reward: float = 0.0
    best_reward: float = 0.0
    """Mean reward of the best completion of each prompt, by the same scorers: optimistic."""
    histogram: tuple[int, ...] = ()
    """Rewards in 20 equal bins of [0, 1]."""
    judge_id: str = ""
    reward_model: str = ""
    """Its digest."""
    seconds: float | None = None
    """Of loading and asking the model, by the attempt that made the record."""
    judge_tokens: int = 0
    usd: float = 0.0

    @property
    def provenance(self) -> dict[str, str]:
        """Digests of the samples and of who scored them: a part of what a model was made from."""
        if self.dataset is None:
            return {}
        digests = {
            "samples": self.dataset.digest,
            "samples.judge": self.judge_id,
            "reward_model": self.reward_model,
        }
        return {name: digest for name, digest in digests.items() if digest}


class Draw(NamedTuple):
    answers: list[tuple[Answer, ...]]
    """Of each prompt; none for a prompt that the model cannot be asked."""
    asked: int
    remembered: int


def draw(
    context: IterationContext, session: InferenceSession, prompts: Sequence[RewardSample], section: Samples
) -> Draw:
    """`section.per_prompt` completions of each prompt by the champion, which `session` has open. Raises what the
    session does; RuntimeError where some answers are errors after all retries."""
    model = context.iteration.champion
    sampling = Sampling(
        samples=section.per_prompt,
        temperature=section.temperature,
        max_completion_tokens=section.max_completion_tokens,
        seed=section.seed,
        skip_unanswerable=True,
    )
    protocol = AnswerProtocol.under(session.decoding, sampling)
    requests = [_requests(model, protocol.digest(), prompt, sampling) for prompt in prompts]
    users = {
        each.key: user_hash(prompt.principal)
        for prompt, asked in zip(prompts, requests, strict=True)
        for each in asked
    }  # fmt: skip
    failed: dict[str, Answer] = {}
    with open_journal(context.store, model.digest, protocol, layout.SAMPLE_ANSWERS) as answered:
        todo = [each for asked in requests for each in asked if each.key not in answered.answers]
        context.log(f"samples: {len(todo):,} to be drawn, {len(users) - len(todo):,} in the journal")

        def keep(answer: Answer) -> None:
            if answer.stop in ("error", "refused"):
                failed[answer.key] = answer
            else:
                answered.add(users[answer.key], answer)

        if todo:
            session.answer(todo, sampling, keep)
        answers = [_answers(asked, answered.answers, failed) for asked in requests]
    return Draw(answers, len(todo), len(users) - len(todo))


def removals(store: Store, principals: Collection[str]) -> Iterator[Removal]:
    return inference.removals(store, {user_hash(each) for each in principals}, layout.SAMPLE_ANSWERS)


def sampled_prompts(rows: Sequence[LabelledRow], section: Samples, max_share: float) -> list[LabelledRow]:
    """One row for each prompt that is sampled, in the order of their hashes. `max_share`: one user's share of them."""
    firsts = [group[0] for group in by_prompt(rows).values()]
    most = min(section.prompts, len(firsts))
    if section.max_tokens is not None:  # if every completion is as long as it may be
        most = min(most, section.max_tokens // (section.per_prompt * section.max_completion_tokens))
    allowed = max(1, int(max_share * most))
    behind: Counter[str] = Counter()
    chosen: list[LabelledRow] = []

    def place(row: LabelledRow) -> str:
        return hashlib.sha256(f"{section.seed}/{prompt_id(row.prompt)}".encode()).hexdigest()

    for row in sorted(firsts, key=place):
        if len(chosen) == most:
            break
        if behind[row.user_id] < allowed:
            behind[row.user_id] += 1
            chosen.append(row)
    return chosen


def prompt_id(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _requests(model: ModelRef, protocol: str, prompt: RewardSample, sampling: Sampling) -> list[AnswerRequest]:
    id = prompt_id(prompt.prompt)
    return [
        AnswerRequest(
            key=answer_key(model.digest, protocol, id, prompt.messages, number),
            messages=prompt.messages,
            seed=answer_seed(sampling.seed, id, number),
        )
        for number in range(sampling.samples)
    ]


def _answers(
    asked: Sequence[AnswerRequest], kept: Mapping[str, Answer], failed: Mapping[str, Answer]
) -> tuple[Answer, ...]:
    """Of one prompt: all or, where it cannot be asked at all, none."""
    missing = [failed[each.key] for each in asked if each.key in failed]
    if errors := [each for each in missing if each.stop == "error"]:
        raise RuntimeError(
            f"{len(errors)} of {len(asked)} completions of a prompt were not drawn: {errors[0].detail}. Run the step "
            "again: what was drawn is kept."
        )
    return () if missing else tuple(kept[each.key] for each in asked)
