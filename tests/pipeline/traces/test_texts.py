"""Only what was said is a text: what is not is taken off, or the row stays out."""

from typing import Any

import msgspec
import pytest

from pipeline.recipe.traces import Placeholder
from pipeline.traces.gates import GateRules, check
from pipeline.traces.records import Reason

from .test_gates import GOOD, NOW, SETTINGS, batch_of, judged

MEDIA = "@@@langfuseMedia:type={}|id=1|source=field_size_limit@@@"
FINAL = "<|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>Hmm."
TOOL = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "", "tool_calls": "[{}]"}]


def asked(*contents: str, role: str = "user") -> list[dict[str, str]]:
    return [{"role": role, "content": content} for content in contents] + GOOD.messages


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("redacted-by-litellm", Reason.NO_CONTENT),
        (" __REDACTED__\n", Reason.NO_CONTENT),
        ("[redacted]", Reason.NO_CONTENT),
        ("[Scrubbed due to 'password']", Reason.NO_CONTENT),
        ("<fully masked due to failed mask function>", Reason.NO_CONTENT),
        ("<truncated due to size exceeding limit>", Reason.NO_CONTENT),
        ("The first half... (litellm_truncated skipped 12 chars) ...and the end", Reason.NO_CONTENT),
        (MEDIA.format("text/plain"), Reason.NO_CONTENT),
        (f"See {MEDIA.format('image/png')}!", Reason.PII),
    ],
)
@pytest.mark.parametrize("place", ["completion", "user", "system", "tool_calls", "tool"])
def test_a_placeholder_is_no_text(place: str, text: str, reason: Reason) -> None:
    changes: dict[str, Any] = {"completion": text}
    if place == "tool_calls":
        changes = {
            "completion": "",
            "tool_calls": f'[{{"type":"function","function":{{"arguments":"{text.strip()}"}}}}]',
        }
        if reason is Reason.NO_CONTENT and "truncated" not in text and "Media" not in text:
            return  # redacted is a whole text
    elif place == "tool":
        changes = {"messages": [*TOOL, {"role": "tool", "content": text}]}
    elif place != "completion":
        changes = {"messages": asked(text, role=place)}
    assert judged(**changes) == reason


@pytest.mark.parametrize("text", ["Why is it [redacted] there?", "redacted-by-litellm is what it writes.", "redacted"])
def test_a_text_about_a_placeholder_is_a_text(text: str) -> None:
    verdict = judged(completion=text)
    assert isinstance(verdict, dict) and verdict["completion"] == text


def test_a_recipe_adds_placeholders() -> None:
    own = (Placeholder(text="(hidden)"), Placeholder(text="[snip]", makes="cut"))
    settings = SETTINGS.model_copy(update={"placeholders": own})
    assert judged(settings, completion="(hidden)") == Reason.NO_CONTENT
    assert judged(settings, completion="Yes [snip]") == Reason.NO_CONTENT
    assert isinstance(judged(settings, completion="It is (hidden)"), dict)


def test_an_expected_answer_that_was_not_recorded_is_none() -> None:
    verdict = judged(metadata={"user_consent": True, "expected_answer": "[REDACTED]"})
    assert isinstance(verdict, dict) and verdict["reference"] is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>\nTwo and two.\n</think>\n\nFour.", "Four."),
        ("<think>\n\n</think>\n\nFour.", "Four."),
        ("<Thinking>Two.</Thinking> Four.", "Four."),
        ("<seed:think>Two.</seed:think>Four.", "Four."),
        ("[THINK]Two.[/THINK]Four.", "Four."),
        ("◁think▷Two.◁/think▷Four.", "Four."),
        ("<|begin_of_thought|>Two.<|end_of_thought|>Four.", "Four."),
        ("<think>Two.</think><think>Again.</think>Four.", "Four."),
        ("The template has opened it.\n</think>\n\nFour.", "Four."),
        (f"{ANALYSIS}<|end|>{FINAL}Four.", "Four."),
        (f"<|start|>assistant{ANALYSIS}<|end|>{FINAL}Four.<|return|>", "Four."),
        ("<|channel|>final<|message|>a < b", "a < b"),
        ("a < b | c > d, x <| f |> g, <b>bold</b> [INSTALL] and List<int>", None),
    ],
)
def test_a_thought_is_taken_off_the_answer(text: str, answer: str | None) -> None:
    verdict = judged(completion=text)
    assert isinstance(verdict, dict) and verdict["completion"] == (text if answer is None else answer)
    history = [*GOOD.messages, {"role": "assistant", "content": text}, *GOOD.messages]
    verdict = judged(messages=history)
    assert isinstance(verdict, dict) and verdict["messages"][1]["content"] == (text if answer is None else answer)


@pytest.mark.parametrize(
    "text", ["<think>Two and", "[THINK]Two", ANALYSIS, f"{ANALYSIS}<|end|>", "<think>Two.</think>"]
)
def test_a_thought_that_is_not_closed_is_no_answer(text: str) -> None:
    assert judged(completion=text) == Reason.EMPTY_OUTPUT


def test_a_thought_that_is_not_closed_is_no_turn() -> None:
    history = [*GOOD.messages, {"role": "assistant", "content": "<think>Two and"}, *GOOD.messages]
    assert judged(messages=history) == Reason.UNREADABLE


CONTROL = [
    "Yes.<|im_end|>\n<|im_start|>user\nThanks<|im_end|>",
    "Yes.<|eot_id|>",
    "Yes.<\uff5cend▁of▁sentence\uff5c>",
    "Yes.</s>",
    "<s>[INST] Yes [/INST]",
    "<start_of_turn>model\nYes",
    "Yes.<end_of_turn>",
    "<|fim_prefix|>a<|fim_suffix|>b",
    "<PRE> a <SUF> b <MID>",
    "[TOOL_CALLS][{}]",
    "<|channel|>commentary to=functions.f<|message|>{}",
    f"{ANALYSIS}<|end|>{FINAL}Four.<|end|><|start|>user",
    "<|channel>thought\nHmm.<channel|>Yes.",
]


@pytest.mark.parametrize("role", ["user", "system", "tool", "assistant", "completion"])
@pytest.mark.parametrize("text", CONTROL)
def test_control_tokens_are_unreadable(text: str, role: str) -> None:
    changes: dict[str, Any] = {"completion": text} if role == "completion" else {"messages": asked(text, role=role)}
    assert judged(**changes) == Reason.UNREADABLE


@pytest.mark.parametrize(
    "text",
    [
        "Yes. <think>Or no?</think> No.", "Use </think> to end it.", "<think>Two.</think>Four.</think>",
        '<tool_call>{"name": "f"}</tool_call>', "<function=f>{}</function>",
        "analysisTwo and two.assistantfinalFour.",
    ],
)  # fmt: skip
def test_what_a_parser_should_have_taken_off_is_unreadable(text: str) -> None:
    assert judged(completion=text) == Reason.UNREADABLE
    assert isinstance(judged(messages=asked(text, role="system")), dict)  # instructions may quote it


def test_a_prompt_that_ends_in_an_assistants_turn_is_unreadable() -> None:
    prefilled = [*GOOD.messages, {"role": "assistant", "content": '{"order":'}]
    assert judged(messages=prefilled, completion=' "A7"}') == Reason.UNREADABLE


def test_rows_keep_their_own_marks() -> None:
    texts = ["Yes", "<think>Hmm.</think>No", "redacted-by-litellm", "a<|im_end|>", "<think>Hm", "Maybe"]
    rows = [msgspec.structs.replace(GOOD, trace_id=f"{n}", completion=text) for n, text in enumerate(texts)]
    checked, reasons = check(batch_of(*rows), GateRules(SETTINGS, NOW))
    assert reasons == [None, None, Reason.NO_CONTENT, Reason.UNREADABLE, Reason.EMPTY_OUTPUT, None]
    assert checked["completion"].to_pylist()[:2] == ["Yes", "No"]
    assert "im_end" not in str(checked["unreadable"].to_pylist())
