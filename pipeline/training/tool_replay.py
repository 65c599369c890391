"""GRPO's completions as episodes with tools, by TRL's experimental `rollout_func` (1.16): a call gets the result that
the traces recorded, without loss. Nothing keeps state between batches, so a resumed training draws the same."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pipeline.core.chat_template import rendered
from pipeline.core.conversation import joined, split
from pipeline.recipe.training import RecordedTools
from pipeline.traces.recorded_calls import Call, calls_in, conversation_key

Ids = list[int]
Messages = list[dict[str, Any]]


class _Episode:
    """A prompt and what follows it: token ids, whether the policy wrote each, and the same as messages."""

    def __init__(self, results: Mapping[Call, str], prompt_ids: Ids) -> None:
        self.results, self.prompt_ids = results, prompt_ids
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
    `answer_tokens`: length limit of one answer. Raises ValueError for a tokenizer whose chat template writes calls in
    another form than Hermes' and Qwen's."""

    def __init__(
        self,
        settings: RecordedTools,
        recorded: Mapping[str, Mapping[Call, str]],
        tokenizer: Any,
        stops: Collection[int],
        answer_tokens: int,
    ) -> None:
        self._settings, self._recorded, self._tokenizer = settings, recorded, tokenizer
        self._stops, self._answer_tokens = frozenset(stops), answer_tokens
        call = {"role": "assistant", "content": joined("", [_PROBE])}
        before, whole = rendered(tokenizer, [_QUESTION]), rendered(tokenizer, [_QUESTION, call], False)
        ids = self._token_ids(whole.removeprefix(before))
        end = next((place for place, id in enumerate(ids) if id in self._stops), len(ids))
        answer = tokenizer.decode(ids[:end], skip_special_tokens=True)
        if split(answer)[1] != [_PROBE]:
            raise ValueError(
                "training.tools reads calls as <tool_call>{json}</tool_call>, and the base model's chat template "
                "writes them in another form. Set training.tools to null, or take a model with Hermes' or Qwen's form."
            )
        self._result_ids(call, [{"role": "tool", "content": "a result", "name": "look_up"}])

    def __call__(self, prompts: Sequence[Messages], trainer: Any) -> dict[str, Any]:
        """The episodes in the order of the prompts, as TRL takes them; `turns` and `text` go to the reward."""
        results = [self._recorded.get(conversation_key(prompt), {}) for prompt in prompts]
        ids = [self._token_ids(rendered(self._tokenizer, prompt)) for prompt in prompts]
        episodes = [_Episode(*each) for each in zip(results, ids, strict=True)]
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

    def _goes_on(self, episode: _Episode, ids: Ids) -> bool:
        """Take an answer; whether it is followed by results, and so by another answer."""
        episode.extend(ids, by_policy=True)
        episode.text = self._tokenizer.decode(ids, skip_special_tokens=True)
        turn = {"role": "assistant", "content": episode.text}
        calls = [call for call, _ in calls_in(turn)]
        if not calls or ids[-1] not in self._stops or episode.called == self._settings.max_calls:
            return False
        results = [episode.results.get(call) for call in calls]
        if None in results and self._settings.on_miss == "end":
            return False
        answered = [
            {"role": "tool", "content": self._settings.error if result is None else result, "name": call.name}
            for call, result in zip(calls, results, strict=True)
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
        before = self._token_ids(rendered(self._tokenizer, [_QUESTION, call], False))
        after = self._token_ids(rendered(self._tokenizer, [_QUESTION, call, *results]))
        ends = [place for place, id in enumerate(before) if id in self._stops]
        begin = ends[-1] + 1 if ends else len(before)
        if after[:begin] != before[:begin]:
            raise ValueError(
                "training.tools appends a tool's result to what the policy wrote, and the base model's chat template "
                "writes a call in another way once its result follows. Set training.tools to null."
            )
        return after[begin:]

    def _token_ids(self, text: str) -> Ids:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


_QUESTION = {"role": "user", "content": "1"}
_PROBE: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "arguments": {"key": "a"}}}
