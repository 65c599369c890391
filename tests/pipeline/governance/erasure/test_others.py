"""Whoever is forgotten: nothing of anybody else's changes, and nothing of theirs is left in what we wrote."""

import csv
import io
import json
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.erasure import NOW, Rows, context_of, lines, plant, rows_of
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.governance.erasure import forget, preview
from pipeline.governance.erasure.records import Person
from pipeline.rewards import reviews
from pipeline.rewards.feedback import principal
from pipeline.serving.inference import AnswerProtocol, open_journal
from pipeline.traces.erased import forgotten, user_hash
from pipeline.traces.pii import pseudonym
from tests.answers import answer
from tests.evals.conftest import DECODING

pytestmark = pytest.mark.slow

MADE_ANEW = {"ledgers of rejected rows", "files of trainings and datasets"}
WORDS = [
    "42", "7", "0", "role", "user", "assistant", "thumb", "ann", "ANN", "Ann", "annabel", "martin", "the", "null",
    "martin@example.com", "MARTIN@example.com", "erased", "trace_id", "user_id", "session:s", "user:ann", "true", "[]",
    "caf\u00e9", "cafe\u0301", "Caf\u00e9", "a b", 'quo"te', "back\\slash", "\u212a", "K", "content", "score", "text",
]  # fmt: skip
IDS = st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8))
USERS = st.lists(
    IDS.filter(lambda id: id.strip() and "\0" not in id),
    min_size=40,
    max_size=40,
    unique_by=lambda id: unicodedata.normalize("NFC", id),
)


def review(store: Store, users: list[str]) -> None:
    """Two scores of each, two rows in a review's sample and sheet, and two answers; each names another user."""
    protocol = AnswerProtocol(decoding=DECODING, temperature=1.0, max_completion_tokens=9, seed=1)
    scores, sample, folder = [], [], store.path(layout.REVIEWS, "2026-W02")
    with open_journal(store, "m", protocol, layout.SAMPLE_ANSWERS) as answers:
        for n in range(2 * len(users)):
            owner, text = principal(str(pseudonym(users[n % len(users)])), None, ""), users[(n + 1) % len(users)]
            trace, item = f"{n:032x}", "".join(chr(ord("a") + int(digit)) for digit in f"{n:012d}")
            answers.add(user_hash(owner), answer(text).model_copy(update={"key": trace}))
            scores.append({"id": f"s{n}", "trace_id": trace, "name": text, "value": 1})
            sample.append({"item": item, "trace_id": trace, "user_id": owner, "day": "2026-01-05", "prompt": text,
                           "completion": text, "reference": "", "stratum": "s"})  # fmt: skip
    lines(store.path("production/scores/2026-01-05.jsonl.gz"), scores)
    lines(folder / "sample.jsonl", sample)
    (folder / "sheet.csv").write_bytes(reviews.render(sample))


def all_rows(store: Store, users: list[str]) -> Rows:
    rows, (sheet,) = rows_of(store.root, users), store.path(layout.REVIEWS).glob("*/sheet.csv")
    texts = [*sheet.parent.glob("*.jsonl"), *store.path(layout.SAMPLE_ANSWERS).rglob("*.jsonl")]
    written = [json.loads(line) for path in texts for line in path.read_bytes().splitlines()]
    for row in [*written, *csv.DictReader(io.StringIO(sheet.read_bytes().decode("utf-8-sig"), newline=""))]:
        trace = row.get("trace_id") or row["answer"]["key"]
        rows[", ".join(row), users[int(trace, 16) % len(users)], repr(row)] += 1
    return rows


@settings(
    max_examples=8,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(USERS, st.data())
def test_any_id_is_forgotten_alone(users: list[str], data: st.DataObject) -> None:
    spelled = data.draw(st.sampled_from([*users, "nobody", "User", "4"]))
    id = unicodedata.normalize(data.draw(st.sampled_from(("NFC", "NFD"))), spelled)
    with tempfile.TemporaryDirectory() as folder:
        root, uri = Path(folder, "data"), f"sqlite:///{folder}/mlflow.db"
        plant(root, 2 * len(users), users)
        spans = root / "production" / "served" / "m" / "2026-01-05-1.jsonl"
        spans.chmod(0o600)
        context = context_of(root)
        review(context.store, users)
        before = all_rows(context.store, users)
        shown = preview(context, Person.named(id), uri)
        proof = forget(context, Person.named(id), registry_uri=uri, now=NOW)
        after, entry, mode = all_rows(context.store, users), forgotten(context.store), spans.stat().st_mode
    nfc = unicodedata.normalize("NFC", id)
    theirs = [user for user in users if unicodedata.normalize("NFC", user) == nfc]
    kept = Counter({row: count for row, count in before.items() if row[1] not in theirs})
    assert after == kept and len({place for place, _, _ in kept}) == 9
    assert (shown.places, proof.remains) == (proof.places, ())
    counted = [sum(counts.values()) for place, counts in proof.places.items() if place not in MADE_ANEW]
    assert sum(counted) == (before - kept).total()
    assert [user for user in users if entry.entry(user)] == theirs
    assert mode & 0o777 == 0o600
