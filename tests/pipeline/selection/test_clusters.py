"""Near-identical prompts stay on one side of the split, and the split stays where it is."""

import json
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.demo.task import problems
from pipeline.selection.clusters import NEIGHBOURS, PromptSketch, cluster, held_out

ASK = "Ada has 14 apples and buys 16 more. How many apples does Ada have now?"


def chat(*said: str, system: str = "") -> str:
    messages = [{"role": "system", "content": system}] if system else []
    return json.dumps([*messages, *({"role": "user", "content": text} for text in said)])


@pytest.mark.parametrize(
    "other",
    [
        chat(ASK.lower().replace("?", "")),
        chat(f"  {ASK}\n"),
        chat(ASK.replace("Ada", "Ben")),
        chat(f"Please: {ASK}"),
        chat(ASK.replace("14", "14.0")),
        chat("Ada buys 16 more apples and has 14. How many apples does Ada have now?"),
        chat(ASK, system="You are a patient teacher of arithmetic."),
    ],
    ids=["case", "space", "name", "politeness", "number's writing", "order", "system message"],
)
def test_near_identical(other: str) -> None:
    assert len(set(cluster([chat(ASK), other]).values())) == 1


@pytest.mark.parametrize(
    "other",
    [chat(ASK.replace("14", "15")), chat("And 3 days later?", ASK), chat("Ada has 14 apples and sells 16 pears.")],
    ids=["other numbers", "another turn", "other words"],
)
def test_another_question(other: str) -> None:
    assert len(set(cluster([chat(ASK), other]).values())) == 2


def test_clusters_are_closed_and_named_by_their_smallest_member() -> None:
    long = "one two three four five six seven eight nine ten".replace("one", "uno")
    a, b, c = chat(long), chat(f"{long} eleven twelve"), chat(f"{long} eleven twelve thirteen fourteen")
    assert not PromptSketch.of(a).is_near(PromptSketch.of(c))
    found = cluster([c, a, b])
    assert len(set(found.values())) == 1
    assert set(found.values()) == set(cluster([min(a, b, c)]).values())


VOCABULARY = ("add", "how", "many", "apples", "pears", "has", "Ada", "Ben", "buys", "sells", "more", "3", "5")
PROMPTS = st.lists(
    st.lists(st.sampled_from(VOCABULARY), max_size=9).map(lambda said: chat(" ".join(said))), max_size=40
)


def test_the_turns_of_a_conversation_stay_together() -> None:
    turns = [{"role": "user", "content": ASK}, {"role": "assistant", "content": "30."}]
    turns += [{"role": "user", "content": "What would 7 pears cost?"}]
    turns += [{"role": "assistant", "content": "", "tool_calls": "[]"}]
    turns += [{"role": "tool", "content": "14 euro", "tool_call_id": "call00000"}]
    prompts = [json.dumps(turns[:end]) for end in (1, 3, 5)]
    other = json.dumps([{"role": "user", "content": "What would 7 pears cost?"}, *turns[1:3]])
    found = cluster([*prompts, other])
    assert len({found[prompt] for prompt in prompts}) == 1 and found[other] != found[prompts[0]]
    assert cluster(prompts[::2])[prompts[0]] == cluster(prompts[::2])[prompts[2]], "a turn may be missing"


@given(PROMPTS, st.floats(0, 1), st.randoms())
def test_no_near_identical_prompts_across_the_split(prompts: list[str], share: float, dice: random.Random) -> None:
    clusters = cluster(prompts)
    hidden = held_out(clusters, share)
    for one, other in combinations(clusters, 2):
        if PromptSketch.of(one).is_near(PromptSketch.of(other)):
            assert clusters[one] == clusters[other]
    assert clusters.keys() == set(prompts)
    assert hidden < set(clusters.values()) or not clusters, "something is left to train on"
    mixed = list(prompts)
    dice.shuffle(mixed)
    assert cluster(mixed) == clusters


def test_the_share_is_met_and_new_prompts_move_no_old_ones() -> None:
    prompts = [chat(problem.prompt) for problem in problems(0, "train", 3000)]
    before, after = cluster(prompts[:2000]), cluster(prompts)
    hidden_before, hidden_after = held_out(before, 0.05), held_out(after, 0.05)
    assert 0.03 < len(hidden_before) / len(set(before.values())) < 0.07
    moved = [p for p in before if (before[p] in hidden_before) != (after[p] in hidden_after)]
    assert len(moved) < 0.02 * len(before)  # those whose cluster got a smaller member


def test_template_without_numbers_stays_cheap_and_exact() -> None:
    def topic(n: int) -> str:
        return "x" + "".join(chr(97 + int(digit)) for digit in str(n))

    count = 4 * NEIGHBOURS
    prompts = [chat(f"Write a short poem about {topic(n)}") for n in range(count)]
    again = [chat(f"Please write a short poem about {topic(n)}") for n in range(count)]
    clusters = cluster([*prompts, *again])
    assert all(clusters[one] == clusters[other] for one, other in zip(prompts, again, strict=True))
    assert len(set(clusters.values())) == count
