"""Figures of a batch's texts, on batches small enough to count by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.texts import completion_statistics

TEMPLATE = "Let us work it out step by step now, {} and so on.\n#### {}"


def of(groups: dict[str, list[str]]) -> dict[str, float]:
    pairs = [(prompt, text) for prompt, texts in groups.items() for text in texts]
    return completion_statistics([text for _, text in pairs], [prompt for prompt, _ in pairs])


def test_completions_of_one_prompt_may_agree() -> None:
    sure = {"p": ["7*2=14. 14+16=30.\n#### 30"] * 8, "q": ["9*6=54. 54-40=14.\n#### 14"] * 8}
    assert of(sure)["text/prefix_share"] == 0
    assert of(sure)["text/distinct_2"] == of({prompt: texts[:1] for prompt, texts in sure.items()})["text/distinct_2"]


@pytest.mark.parametrize(
    ("groups", "share"),
    [
        ({f"p{n}": [TEMPLATE.format(n, n)] * 4 for n in range(5)}, 1.0),
        ({f"p{n}": [TEMPLATE.format(n, n) if n < 3 else f"{n} " * 9] for n in range(5)}, 0.5),  # 2 of 4 others
        ({f"p{n}": [TEMPLATE.format(n, n), *(f"{n} {k} " * 9 for k in range(3))] for n in range(5)}, 0.0625),
        ({"p": ["", ""], "q": [""]}, 1.0),  # nothing at all is a template too
        ({"p": ["I cannot."], "q": ["I cannot."], "r": ["12 apples"]}, 0.5),
        ({"p": [TEMPLATE] * 8}, 0.0),
    ],
)
def test_a_shared_opening_counts_across_prompts(groups: dict[str, list[str]], share: float) -> None:
    assert of(groups)["text/prefix_share"] == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "refuses", "answers"),
    [
        ("I'm sorry, but I can't help with that.", 1, 0),
        ("I\u2019m unable to answer.", 1, 0),
        ("As an AI, I do not count apples.\n#### 3", 1, 1),
        ("She cannot give more than 4.\n#### 4", 0, 1),
        ("x" * 500 + " I cannot", 0, 0),
        ("so \\boxed{12}", 0, 1),
        ("so ####", 0, 0),
        ("", 0, 0),
    ],
)
def test_refusals_and_answers(text: str, refuses: float, answers: float) -> None:
    found = completion_statistics([text], ["p"])
    assert (found["text/refusals"], found["text/answered"]) == (refuses, answers)


@given(st.lists(st.tuples(st.text(max_size=60), st.sampled_from("pqrs")), min_size=1))
def test_shares_whatever_the_texts_and_in_any_order(pairs: list[tuple[str, str]]) -> None:
    found = completion_statistics(*map(list, zip(*pairs, strict=True)))
    assert all(0 <= value <= 1 for value in found.values())
    by_prompt = sorted(pairs, key=lambda pair: pair[1])  # stable: the draws of each prompt stay in order
    assert completion_statistics(*map(list, zip(*by_prompt, strict=True))) == pytest.approx(found)
