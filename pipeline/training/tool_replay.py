"""GRPO's completions as episodes with tools: a call gets the result that the traces recorded, and the policy goes on.

TRL's `rollout_func` (1.16, experimental there): called with a batch's prompts, it returns token ids and, under
`env_mask`, which of them the policy wrote. Results carry no loss. Nothing here keeps state between batches and the only
randomness is the generation's, so a resumed training draws the same episodes. Refuses to run a tool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.methods.answers import chat, rendered
from pipeline.recipe.tools import RecordedTools
from pipeline.traces.tool_results import Call, calls_of, canonical, conversation_key

Ids = list[int]
Messages = list[dict[str, Any]]
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class Replayable(NamedTuple):
    """Of one prompt: the recorded results, and the definitions of its tools as JSON text; None without any."""

    results: Mapping[Call, str]
    tools: str | None


class _Episode:
    """A prompt and what follows it: token ids, whether the policy wrote each, and the same as messages."""

    def __init__(self, prompt: Messages, replayable: Replayable, prompt_ids: Ids) -> None:
        self.prompt, self.replayable, self.prompt_ids = prompt, replayable, prompt_ids
        self.ids: Ids = []
        self.mask: list[int] = []
        self.turns: Messages = []
        """Turns before the last answer: calls and their results."""
        self.text = ""
        self.called = 0

    def extend(self, ids: Ids, by_policy: bool) -> None:
        self.ids += ids
        self.mask += [int(by_policy)] * len(ids)


class ToolReplay:
    """Draws a batch's episodes. `recorded`: by `conversation_key` of a prompt; `stops`: ids that end an answer;
    `answer_tokens`: length limit of one answer.

    Raises ValueError for a tokenizer whose chat template writes calls in another form than Hermes' and Qwen's.
    """

    def __init__(
        self,
        settings: RecordedTools,
        recorded: Mapping[str, Replayable],
        tokenizer: Any,
        stops: Collection[int],
        answer_tokens: int,
    ) -> None:
        self._settings, self._recorded, self._tokenizer = settings, recorded, tokenizer
        self._stops, self._answer_tokens = frozenset(stops), answer_tokens
        call = _call_turn("", [Call("look_up", '{"key": "a"}')])
        shown = tokenizer.apply_chat_template(chat([_QUESTION, call]), tokenize=False)
        if [read for read, _ in calls_of(read_calls(shown))] != [Call("look_up", '{"key": "a"}')]:
            raise ValueError(
                "training.tools reads calls as <tool_call>{json}</tool_call>, and the base model's chat template "
                "writes them in another form. Set training.tools to null, or take a model with Hermes' or Qwen's form."
            )
        self._result_ids(call, [_result_turn("look_up", "1", "a result")])

    def __call__(self, prompts: Sequence[Messages], trainer: Any) -> dict[str, Any]:
        """The episodes in the order of the prompts, as TRL takes them; `turns` and `text` go to the reward."""
        episodes = [self._begun(prompt) for prompt in prompts]
        going = episodes
        while trainer.most(len(going)) > 0:  # as often on every rank: generation may take all of them
            asked = going or episodes[:1]
            drawn, _ = trainer._generate_single_turn([each.prompt_ids + each.ids for each in asked], None, {}, 1)
            going = [each for each, ids in zip(going, drawn, strict=bool(going)) if self._goes_on(each, ids)]
        return {
            "prompt_ids": [each.prompt_ids for each in episodes],
            "completion_ids": [each.ids for each in episodes],
            "logprobs": None,  # as without episodes: the trainer takes its own
            "env_mask": [each.mask for each in episodes],
            "turns": [each.turns for each in episodes],
            "text": [each.text for each in episodes],
        }

    def _begun(self, prompt: Messages) -> _Episode:
        replayable = self._recorded.get(conversation_key(prompt), Replayable({}, None))
        text = rendered(self._tokenizer, prompt, replayable.tools)
        return _Episode(prompt, replayable, self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _goes_on(self, episode: _Episode, ids: Ids) -> bool:
        """Take an answer; whether it is followed by results, and so by another answer."""
        episode.extend(ids, by_policy=True)
        episode.text = self._tokenizer.decode(ids, skip_special_tokens=True)
        turn = read_calls(episode.text)
        calls = calls_of(turn)
        if not calls or ids[-1] not in self._stops or episode.called == self._settings.max_calls:
            return False
        results = [episode.replayable.results.get(call) for call, _ in calls]
        if None in results and self._settings.on_miss == "end":
            return False
        answered = [
            _result_turn(call.name, id, self._settings.error if result is None else result)
            for (call, id), result in zip(calls, results, strict=True)
        ]
        new = self._result_ids(turn, answered)
        room = self._settings.max_tokens - len(episode.ids)
        episode.extend(new[:room], by_policy=False)
        if room < len(new) + self._answer_tokens:
            return False
        episode.called += 1
        episode.turns += [turn, *answered]
        return True

    def _result_ids(self, call: dict[str, Any], results: Messages) -> Ids:
        """What follows the end of a call's turn, up to where the next answer begins."""
        before, after = (self._ids(chat([_QUESTION, call, *more]), bool(more)) for more in ([], results))
        ends = [place for place, id in enumerate(before) if id in self._stops]
        begin = ends[-1] + 1 if ends else len(before)
        if after[:begin] != before[:begin]:
            raise ValueError(
                "training.tools appends a tool's result to what the policy wrote, and the base model's chat template "
                "writes a call in another way once its result follows. Set training.tools to null."
            )
        return after[begin:]

    def _ids(self, messages: Messages, answered: bool) -> Ids:
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=answered)
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


_QUESTION = {"role": "user", "content": "1"}


def read_calls(text: str) -> dict[str, Any]:
    """The assistant's turn that an answer is: words, and calls as JSON text where it has some. What is no call of this
    form stays text."""
    calls: list[Call] = []
    for match in _CALL.finditer(text):
        try:
            body = json.loads(match[1])
        except ValueError:
            return {"role": "assistant", "content": text}
        if not isinstance(body.get("name"), str) or "arguments" not in body:
            return {"role": "assistant", "content": text}
        calls.append(Call(body["name"], canonical(body["arguments"])))
    return _call_turn(_CALL.sub("", text).strip(), calls) if calls else {"role": "assistant", "content": text}


def _call_turn(words: str, calls: Sequence[Call]) -> dict[str, Any]:
    listed = [
        {"id": str(number), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for number, call in enumerate(calls, 1)
    ]
    return {"role": "assistant", "content": words, "tool_calls": json.dumps(listed, ensure_ascii=False)}


def _result_turn(name: str, id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": id, "name": name}
