"""Prompts and answers as token ids: a prompt as generation is asked it, an answer as generation draws it.

An answer is its own text and the one token that the chat template ends a turn with, nothing after it (many templates
write a line break there). Tokenised here and not by TRL, because Arrow merges the structs of different tools' calls:
rows of a table hold calls as JSON in text, and no table comes between decoding them and the template. An answer's calls
are in the tokens that the template has for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.core.chat_template import rendered, rendered_answer
from pipeline.core.conversation import split

Ids = list[int]


class TokenisedAnswers(NamedTuple):
    """Token ids of each row's prompt, and of its answer with its end."""

    prompts: list[Ids]
    answers: list[Ids]

    def refuse_long_prompts(self, limit: int | None) -> None:
        """Raise ValueError where a prompt leaves its answer no token within `limit`."""
        self._refuse([len(ids) for ids in self.prompts], limit, "prompts fill", least=1)

    def refuse_long_rows(self, limit: int | None) -> None:
        """Raise ValueError where a prompt and its whole answer take more than `limit` tokens."""
        sizes = [len(prompt) + len(answer) for prompt, answer in zip(self.prompts, self.answers, strict=True)]
        self._refuse(sizes, limit, "prompts with their answers take more than", least=0)

    def _refuse(self, sizes: Sequence[int], limit: int | None, what: str, least: int) -> None:
        long = sum(size + least > limit for size in sizes) if limit is not None else 0
        if long:
            raise ValueError(
                f"{long} of {len(sizes)} {what} the {limit} tokens of max_tokens, or of the model's context; the "
                f"longest has {max(sizes)}. Raise the method's max_tokens, or leave long prompts out."
            )

    def labelled(self) -> list[dict[str, Ids]]:
        """Rows of `input_ids` and `labels`, which are -100 where there is no loss: on the whole prompt."""
        return [
            {"input_ids": [*prompt, *answer], "labels": [-100] * len(prompt) + answer}
            for prompt, answer in zip(self.prompts, self.answers, strict=True)
        ]


def tokenised(tokenizer: Any, stops: Sequence[int], rows: Sequence[Mapping[str, Any]]) -> TokenisedAnswers:
    """Of rows with a `prompt` of messages and a `completion` of text, in their order.

    `stops`: tokens that generation ends at. Raises ValueError for an answer without text, and where the chat template
    ends an answer with none of `stops`.
    """
    end = end_token(tokenizer, stops)
    prompts: dict[str, Ids] = {}
    answers: dict[tuple[str, str], Ids] = {}
    keys = [json.dumps(row["prompt"], ensure_ascii=False) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        if not row["completion"].strip():
            raise ValueError("A row's answer is empty. Make the preference dataset anew: it leaves such rows out.")
        if key not in prompts:
            prompts[key] = _ids(tokenizer, rendered(tokenizer, row["prompt"]))
        answer = _answer_key(key, row)
        if answer not in answers:
            calls = bool(answer[0])
            text = rendered_answer(tokenizer, row["prompt"], row["completion"]) if calls else row["completion"]
            ids = _ids(tokenizer, text)
            stop = next((place for place, id in enumerate(ids) if id in stops), len(ids))
            answers[answer] = [*ids[:stop], end]
    return TokenisedAnswers(
        [prompts[key] for key in keys], [answers[_answer_key(key, row)] for key, row in zip(keys, rows, strict=True)]
    )


def _answer_key(prompt: str, row: Mapping[str, Any]) -> tuple[str, str]:
    """What decides an answer's tokens: its text, and the prompt where the template renders its calls."""
    return (prompt if split(row["completion"])[1] else ""), row["completion"]


def end_token(tokenizer: Any, stops: Sequence[int]) -> int:
    """The token of `stops` that the chat template ends an answer with. Raises ValueError where it does with none."""
    question = [{"role": "user", "content": "1"}]
    before = rendered(tokenizer, question)
    whole = rendered(tokenizer, [*question, {"role": "assistant", "content": "1"}], add_generation_prompt=False)
    tail = whole[len(before) :] if whole.startswith(before) else whole
    ends = [id for id in _ids(tokenizer, tail) if id in stops]
    if not ends:
        raise ValueError(
            "The chat template ends an answer with no token that generation stops at: a model trained so would not "
            "stop. Save the tokenizer with its chat template's end as eos_token."
        )
    return ends[-1]


def _ids(tokenizer: Any, text: str) -> Ids:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
