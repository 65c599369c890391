"""Consent is what the governed table says now, not what it said when the dataset was published."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.core.storage import DatasetRef, Store
from pipeline.recipe import Training
from pipeline.selection.trainable import within_context
from pipeline.traces.erased import ErasedUser, add, exclusive_lock
from pipeline.traces.lake import local_lake
from pipeline.traces.pii import pseudonym
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import consented
from tests.contexts import mark_of
from tests.pipeline.traces.conftest import Run, export, observation, run, store, write

from .labelled import row

pytestmark = pytest.mark.slow


__all__ = ["export", "run", "store"]  # the stage's own fixtures
FILE = "observations_v2/2026-01-05.jsonl.gz"
MAIL = "ann@example.com"
EARLY, LATE = "2026-01-05 09:00:00.000000", "2026-01-05 15:00:00.000000"


@pytest.fixture
def governed(run: Run, export: Path) -> GovernedTraces:
    """Two rows of Ann's, one before and one after noon, one of Bob's."""
    rows = [observation(1, user_id=MAIL, start_time=EARLY), observation(2, user_id=MAIL, start_time=LATE)]
    write(export, FILE, [*rows, observation(3, user_id="bob"), observation(4, metadata={})])
    return run()


def kept(store: Store, governed: GovernedTraces) -> list[str]:
    found = consented(store, local_lake(store), governed.iteration.dataset)
    assert all(observation == f"o{trace[1:]}" for trace, observation in found)
    return sorted(trace for trace, _ in found)


def test_what_the_table_holds_may_be_used(store: Store, governed: GovernedTraces) -> None:
    assert kept(store, governed) == ["t1", "t2", "t3"]


def test_consent_withdrawn_later_counts_for_an_old_dataset(
    store: Store, export: Path, run: Run, governed: GovernedTraces
) -> None:
    withdrawn = observation(
        3, user_id="bob", metadata={"user_consent": "false"}, updated_at="2026-01-06 00:00:00.000000"
    )
    write(
        export, "observations_v2/2026-01-06.jsonl.gz", [withdrawn, observation(9, start_time="2026-01-06 10:00:00.0")]
    )
    assert run().iteration.dataset != governed.iteration.dataset
    assert kept(store, governed) == ["t1", "t2"]


@pytest.mark.parametrize(
    ("user", "expected"),
    [(MAIL, ["t3"]), (pseudonym(MAIL), ["t3"]), ("bob", ["t1", "t2"]), ("nobody", ["t1", "t2", "t3"])],
)
def test_forgotten_user_is_left_out_before_the_rows_are_gone(
    store: Store, governed: GovernedTraces, user: str, expected: list[str]
) -> None:
    with exclusive_lock(store):
        add(store, ErasedUser(mark=mark_of(user), proof="p"))
    assert kept(store, governed) == expected


def test_an_unknown_dataset_is_an_error(store: Store) -> None:
    with pytest.raises(ValueError, match=r"no dataset dddddddddddd\. Materialise"):
        consented(store, local_lake(store), DatasetRef(uri="", rows=1, digest="d" * 64))


def test_rows_beyond_the_context_are_left_out(family: Callable[[str], Path]) -> None:
    folder, training = family("gpt2"), Training.model_validate({"grpo": {"max_completion_tokens": 32}})
    short, long_prompt = row("a", 1.0, "Add 1 and 2."), row("b", 1.0, "Add 1 and 2. " * 60)
    long_answer = row("c", 1.0, "Add 1 and 2.", completion="1 + 2 is 3 " * 60)
    folded = row("d", 1.0, " and" * 60)  # four bytes a token
    rows = [short, long_prompt, long_answer, folded]
    assert within_context(rows, folder, training) == [short, folded]
    crowded = Training.model_validate({"grpo": {"max_completion_tokens": 255}})
    assert within_context(rows, folder, crowded) == []


def test_without_a_known_context_no_row_is_left_out(tmp_path: Path) -> None:
    rows = [row("a", 1.0, "Add " * 1000)]
    assert within_context(rows, tmp_path, Training()) == rows
