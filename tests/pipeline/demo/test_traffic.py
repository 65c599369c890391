import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core.storage import ModelRef, Store
from pipeline.demo import MODEL_DIR, has_weights_of
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.demo.export import users
from pipeline.demo.traffic import PEOPLE, TrafficClaim, ask, ensure_days, requests_of
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.traces import Traces
from pipeline.serving.inference import Answer, Messages, Sampling
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import materialize, read
from pipeline.traces.records import GovernedTraces, Reason
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import Address
from tests.answers import answer
from tests.contexts import stage_context

FIRST = ModelRef(uri="/models/a", digest="a" * 64)
SECOND = ModelRef(uri="/models/b", digest="b" * 64)


class Server:
    """Answers every prompt, each second sample wrongly, at a speed that differs from call to call."""

    def __init__(self, fails_at: int = -1) -> None:
        self.calls: list[Sampling] = []
        self.fails_at = fails_at

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Answer]]:
        if len(self.calls) == self.fails_at:
            raise KeyboardInterrupt
        self.calls.append(sampling)
        return [
            [answer(f"Well.\n#### {n if s % 2 else 7}", latency_s=len(self.calls)) for s in range(sampling.samples)]
            for n, _ in enumerate(prompts)
        ]


def serve(
    root: Path, champion: ModelRef = FIRST, server: Server | None = None, size: int = 200, days: int = 2
) -> Server:
    server = server or Server()
    ensure_days(root, champion, DemoSource(days=days, traces_per_day=size), server, lambda line: None)
    return server


def govern(root: Path, store: Path, champion: ModelRef = FIRST, version: int = 0, days: int = 30) -> GovernedTraces:
    source = DemoSource()
    return materialize(
        stage_context(Store(store), traces=Traces(source=source, window_days=days)),
        Address(source, str(root)),
        Producer(champion, "tiny", version, datetime(2026, 2, 1, tzinfo=UTC) if version else None),
        0,
        datetime(2026, 2, 1, tzinfo=UTC),
    )


def content(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_a_day_is_served_once_and_every_champion_has_its_own(tmp_path: Path) -> None:
    server = serve(tmp_path)
    assert [(s.samples, s.temperature, s.max_completion_tokens) for s in server.calls] == [(4, 1.0, 32)] * 2
    before = content(tmp_path)
    assert serve(tmp_path).calls == []
    assert content(tmp_path) == before
    serve(tmp_path, SECOND, days=1)
    after = content(tmp_path)
    assert {name: after[name] for name in before} == before
    days = [name for name in after if name.startswith("observations_v2/")]
    assert [Path(d).name for d in days] == [f"2026-01-0{n}.jsonl.gz" for n in (5, 6, 7)]
    claims = [TrafficClaim.model_validate_json(p.read_text()) for p in sorted((tmp_path / "claims").iterdir())]
    assert [c.champion for c in claims] == [FIRST.digest, SECOND.digest]


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_crash_then_a_second_call_gives_the_same_bytes(tmp_path: Path, fails_at: int) -> None:
    serve(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path / "crashed", server=Server(fails_at))
    serve(tmp_path / "crashed")
    assert content(tmp_path / "crashed") == content(tmp_path / "whole")


@pytest.mark.slow
def test_what_it_exports_is_governed_as_designed(tmp_path: Path) -> None:
    serve(tmp_path / "export", size=2000)
    governed = govern(tmp_path / "export", tmp_path / "store")
    share = {reason: count / governed.seen for reason, count in governed.rejected.items()}
    assert governed.seen > 4000
    assert 0.72 < governed.admitted / governed.seen < 0.88
    assert 0.08 < share[Reason.CONSENT] < 0.22
    assert 0.01 < share[Reason.ERROR] < 0.03
    for reason in (Reason.REGION, Reason.CONFIDENTIAL, Reason.LATENCY, Reason.SUPERSEDED, Reason.DUPLICATE):
        assert 0 < share[reason] < 0.06
    assert 0 < share[Reason.MALFORMED] < 0.015
    assert Reason.SCHEMA not in share and Reason.GATE_ERROR not in share
    rows = read(
        Store(tmp_path / "store"), local_lake(Store(tmp_path / "store")), governed.iteration.dataset
    ).to_pylist()
    prompts = Counter(r["messages"][0]["content"] for r in rows)
    assert 900 < len(prompts) <= 1000
    assert 2.5 < len(rows) / len(prompts) <= 4
    assert len({r["user_id"] for r in rows}) > 150
    assert 0.8 < sum(r["reference"] is not None for r in rows) / len(rows) < 0.9
    assert 0.35 < sum(r["feedback_count"] for r in rows) / len(rows) < 0.45
    assert 0.02 < sum("[" in prompt for prompt in prompts) / len(prompts) < 0.07
    assert not any("example.com" in prompt or "4111" in prompt for prompt in prompts)


def test_requests_follow_from_the_key() -> None:
    source = DemoSource(kind="demo")
    assert requests_of(source, "a", 50) == requests_of(source, "a", 50)
    assert requests_of(source, "a", 50) != requests_of(source, "b", 50)
    assert len(requests_of(source, "a", 50)) == 50


def test_users_ask_a_prompt_several_times_and_agree_as_they_did() -> None:
    source = DemoSource(kind="demo")
    people = {user.id: user for user in users(source.seed, PEOPLE)}
    asked = requests_of(source, "a", 400)
    assert max(Counter(str(request.messages) for request in asked).values()) == 4
    for request in asked:
        assert request.metadata.get("user_consent") == people[request.user].consent
    known = sum("expected_answer" in request.metadata for request in asked)
    assert 300 < known < 380


def test_desk_users_send_the_facts_with_the_question() -> None:
    asked = requests_of(DemoSource(kind="demo", world="desk"), "a", 20)
    assert all(json.loads(request.metadata["contexts"]) for request in asked)
    assert all("expected_answer" not in request.metadata for request in asked)


def test_users_of_a_server_that_is_away_get_no_answer() -> None:
    assert ask("http://127.0.0.1:9/v1", requests_of(DemoSource(kind="demo"), "a", 5)) == 5


def test_an_embedded_model_is_known_by_its_weights() -> None:
    assert has_weights_of(MODEL_DIR, MODEL_DIR) and not has_weights_of(MODEL_DIR, DESK_DIR)
    assert has_weights_of(DESK_DIR, DESK_DIR) and not has_weights_of(DESK_DIR, MODEL_DIR)
