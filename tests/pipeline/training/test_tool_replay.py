"""Episodes with recorded tools: what follows a call, what the policy is trained on, and when an episode ends."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import AutoTokenizer

from pipeline.core.chat_template import rendered
from pipeline.demo import MODEL_DIR as WITHOUT_CALLS
from pipeline.demo.desk import MODEL_DIR as WITH_CALLS
from pipeline.demo.desk.conversation import Turn, begin
from pipeline.demo.desk.requests import call_text, row_text
from pipeline.recipe.training import RecordedTools
from pipeline.traces.recorded_calls import Call, conversation_key
from pipeline.training.tool_replay import ToolReplay

TOKENIZER: Any = AutoTokenizer.from_pretrained(WITH_CALLS)
END = TOKENIZER.eos_token_id
TURN = begin(random.Random(0), "train", tool=True)
ORDER = TURN.request.order
RESULT = row_text(TURN.request.rows[0])
ANSWER = "Hello! I cannot say. Good day!"


class Policy:
    """Stands where the trainer is: says what it was given to say, and keeps what it was asked."""

    def __init__(self, *says: Sequence[str], cut: bool = False) -> None:
        self.says, self.cut = list(says), cut
        self.asked: list[list[str]] = []

    def most(self, count: int) -> int:
        return count

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any) -> tuple[list[list[int]], None]:
        self.asked.append([TOKENIZER.decode(ids) for ids in prompt_ids])
        texts = self.says.pop(0)
        assert len(texts) == len(prompt_ids)
        return [TOKENIZER(text)["input_ids"] + ([] if self.cut else [END]) for text in texts], None


def replay(turn: Turn = TURN, **settings: Any) -> ToolReplay:
    held = {Call("lookup_order", json.dumps({"order": turn.request.order})): RESULT}
    recorded = {conversation_key(turn.messages): held}
    return ToolReplay(RecordedTools(**settings), recorded, TOKENIZER, [END], 48)


def by_policy(drawn: dict[str, Any], place: int = 0) -> str:
    ids, mask = drawn["completion_ids"][place], drawn["env_mask"][place]
    assert len(ids) == len(mask)
    return TOKENIZER.decode([id for id, own in zip(ids, mask, strict=True) if own])


def test_a_recorded_call_gets_its_result_and_an_answer() -> None:
    policy = Policy([call_text(ORDER)], [ANSWER])
    drawn = replay()([TURN.conversation], policy)
    whole = TOKENIZER.decode(drawn["completion_ids"][0])
    call = f"{call_text(ORDER)}<|im_end|>"
    assert whole == f"{call}\n<|im_start|>tool\n{RESULT}<|im_end|>\n<|im_start|>assistant\n{ANSWER}<|im_end|>"
    assert by_policy(drawn) == f"{call}{ANSWER}<|im_end|>"
    prompt = rendered(TOKENIZER, TURN.conversation)
    assert TOKENIZER.decode(drawn["prompt_ids"][0]) == prompt
    assert policy.asked == [[prompt], [prompt + whole.removesuffix(f"{ANSWER}<|im_end|>")]]
    assert drawn["text"] == [ANSWER]
    assert [turn["role"] for turn in drawn["turns"][0]] == ["assistant", "tool"]
    assert drawn["turns"][0][1]["content"] == RESULT
    assert rendered(TOKENIZER, [*TURN.conversation, *drawn["turns"][0]]) == policy.asked[1][0]


@pytest.mark.parametrize(("on_miss", "answers"), [("error", 2), ("end", 1)])
def test_a_call_without_a_result_is_a_miss(on_miss: str, answers: int) -> None:
    policy = Policy([call_text("K00")], [ANSWER])
    drawn = replay(on_miss=on_miss)([TURN.conversation], policy)
    assert len(policy.asked) == answers
    if on_miss == "end":
        assert drawn["text"] == [call_text("K00")] and drawn["turns"] == [[]]
        assert set(drawn["env_mask"][0]) == {1} and drawn["completion_ids"][0][-1] == END
    else:
        assert drawn["turns"][0][1]["content"] == "No result is recorded for this call."
        assert "No result" not in by_policy(drawn) and drawn["text"] == [ANSWER]


def test_only_those_that_call_are_asked_again() -> None:
    policy = Policy([ANSWER, call_text(ORDER), ANSWER], [ANSWER])
    drawn = replay()([TURN.conversation] * 3, policy)
    assert [len(asked) for asked in policy.asked] == [3, 1]
    assert [len(turns) for turns in drawn["turns"]] == [0, 2, 0]
    assert [by_policy(drawn, place).count("<|im_end|>") for place in range(3)] == [1, 2, 1]


def test_an_episode_ends_after_so_many_calls() -> None:
    policy = Policy(*[[call_text(ORDER)]] * 3)
    drawn = replay(max_calls=2)([TURN.conversation], policy)
    assert len(policy.asked) == 3
    assert drawn["text"] == [call_text(ORDER)]
    assert len(drawn["turns"][0]) == 4


def test_an_episode_without_room_has_not_ended() -> None:
    policy = Policy([call_text(ORDER)])
    drawn = replay(max_tokens=60)([TURN.conversation], policy)
    assert len(policy.asked) == 1
    assert drawn["completion_ids"][0][-1] != END
    assert len(drawn["completion_ids"][0]) <= 60
    assert by_policy(drawn) == f"{call_text(ORDER)}<|im_end|>"


def test_a_call_that_is_cut_gets_no_result() -> None:
    drawn = replay()([TURN.conversation], Policy([call_text(ORDER)], cut=True))
    assert drawn["turns"] == [[]] and drawn["completion_ids"][0][-1] != END


def test_a_template_of_another_form_is_refused() -> None:
    tokenizer = AutoTokenizer.from_pretrained(WITHOUT_CALLS)
    with pytest.raises(ValueError, match="chat template"):
        ToolReplay(RecordedTools(), {}, tokenizer, [tokenizer.eos_token_id], 48)
