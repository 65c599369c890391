"""Prompts and answers as token ids: a prompt as generation is asked it, an answer as generation draws it.

An answer is its own text and the one token that the chat template ends a turn with, nothing after it (many templates
write a line break there). Tokenised here and not by TRL, because Arrow merges the structs of different tools' calls:
rows of a table hold calls as JSON in text, and no table comes between decoding them and the template.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
    answers: dict[str, Ids] = {}
    keys = [json.dumps(row["prompt"], ensure_ascii=False) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        if not row["completion"].strip():
            raise ValueError("A row's answer is empty. Make the preference dataset anew: it leaves such rows out.")
        if key not in prompts:
            prompts[key] = _ids(tokenizer, rendered(tokenizer, row["prompt"]))
        if row["completion"] not in answers:
            ids = _ids(tokenizer, row["completion"])
            stop = next((place for place, id in enumerate(ids) if id in stops), len(ids))
            answers[row["completion"]] = [*ids[:stop], end]
    return TokenisedAnswers([prompts[key] for key in keys], [answers[row["completion"]] for row in rows])


def rendered(tokenizer: Any, prompt: Sequence[Mapping[str, Any]], tools: str | None = None) -> str:
    """The text that generation continues, from messages as a table holds them. `tools`: definitions, as JSON text."""
    definitions = None if tools is None else json.loads(tools)
    return tokenizer.apply_chat_template(chat(prompt), tools=definitions, tokenize=False, add_generation_prompt=True)


def chat(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a chat template takes them: calls decoded (their arguments stay the text that they are), and no key
    for what a message has not."""
    plain = [{name: value for name, value in message.items() if value is not None} for message in messages]
    for message in plain:
        if isinstance(message.get("tool_calls"), str):
            message["tool_calls"] = json.loads(message["tool_calls"])
    return plain


def end_token(tokenizer: Any, stops: Sequence[int]) -> int:
    """The token of `stops` that the chat template ends an answer with. Raises ValueError where it does with none."""
    question = [{"role": "user", "content": "1"}]
    before = rendered(tokenizer, question)
    whole = tokenizer.apply_chat_template([*question, {"role": "assistant", "content": "1"}], tokenize=False)
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
