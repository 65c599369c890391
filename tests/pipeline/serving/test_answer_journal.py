"""The journal of answers: by model and protocol, and by item where one is erased (tests/pipeline/core/test_journal.py
has what holds for every journal)."""

from pathlib import Path

import pytest

from pipeline.core import layout
from pipeline.core.removal import make
from pipeline.core.storage import Store
from pipeline.serving.inference import Answer, AnswerProtocol, answer_key, open_journal, removals
from tests.answers import answer
from tests.evals.conftest import DECODING

PROTOCOL = AnswerProtocol(decoding=DECODING, temperature=1.0, max_completion_tokens=9, seed=1)


def given(key: str, text: str = "four") -> Answer:
    return answer(text).model_copy(update={"key": key})


def test_answers_are_of_one_model_and_one_protocol(tmp_path: Path) -> None:
    store, other = Store(tmp_path), PROTOCOL.model_copy(update={"seed": 2})
    with open_journal(store, "m", PROTOCOL) as journal:
        journal.add("item", given("1"))
    with open_journal(store, "m", PROTOCOL) as journal:
        assert journal.answers == {"1": given("1")}
    for model, protocol in (("other", PROTOCOL), ("m", other)):
        with open_journal(store, model, protocol) as journal:
            assert journal.answers == {}
    of_one, of_other = (store.path(layout.answers("m", each.digest())) for each in (PROTOCOL, other))
    of_other.write_bytes(of_one.read_bytes())
    with pytest.raises(ValueError, match=r"Line 1 of .* has the digest "), open_journal(store, "m", other):
        pass


def test_keys_hang_on_what_decides_the_answer_alone() -> None:
    messages = [{"role": "user", "content": "2 + 2?"}]
    key = answer_key("m", "p", "item", messages, 0)
    others = [
        answer_key("n", "p", "item", messages, 0),
        answer_key("m", "q", "item", messages, 0),
        answer_key("m", "p", "other", messages, 0),
        answer_key("m", "p", "item", [{"role": "user", "content": "2 + 3?"}], 0),
        answer_key("m", "p", "item", messages, 1),
    ]
    assert len({key, *others}) == 6
    assert key == answer_key("m", "p", "item", list(messages), 0)


def test_the_answers_to_an_item_are_erased_from_every_journal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for model in ("m", "other"):
        with open_journal(store, model, PROTOCOL) as journal:
            journal.add("theirs", given("a", "a secret"))
            journal.add("another", given("b"))
    assert [change.split(": ")[1] for change in make(removals(store, {"theirs"}))] == ["1 lines"] * 2
    for model in ("m", "other"):
        with open_journal(store, model, PROTOCOL) as journal:
            assert list(journal.answers) == ["b"]
