import pytest

from pipeline.core.thoughts import opening, without_opening


@pytest.mark.parametrize(
    ("prompt", "end"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("a <think>", "<think>"),
        ("<think> a", ""),
        ("</think>\n", ""),
    ],
)
def test_a_prompt_that_opens_a_thought_is_known_by_its_end(prompt: str, end: str) -> None:
    assert opening(prompt) == end


@pytest.mark.parametrize(
    ("text", "drawn"), [("<think>\nSo.</think>7", "So.</think>7"), ("7", "7"), ("7 <think>", "7 <think>")]
)
def test_an_answer_is_continued_behind_the_opened_thought(text: str, drawn: str) -> None:
    assert without_opening(text) == drawn
