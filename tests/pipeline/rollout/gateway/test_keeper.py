"""The slots of the embedded gateway as real processes: started, asked through the gateway, ended, started again."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest

from pipeline.core.storage import ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.users import ask, requests_of
from pipeline.recipe.traces import DemoSource
from pipeline.rollout.gateway import keeper as keeper_module
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.process import GatewaySettings, running_gateway
from pipeline.rollout.gateway.tables import read_slots, write_split
from pipeline.rollout.router import Split

NAME = "arithmetic"
CHAMPION = model_ref(MODEL_DIR)


def sibling(folder: Path) -> ModelRef:
    """The embedded model under another digest."""
    shutil.copytree(MODEL_DIR, folder)
    (folder / "NOTES").write_text("another version")
    return model_ref(folder)


def served_by(url: str, user: str) -> str:
    body = {"model": NAME, "messages": [{"role": "user", "content": "3 + 4?"}]}
    return httpx2.post(f"{url}/v1/chat/completions", json=body, headers={"x-user-id": user}, timeout=60).json()["model"]


def listed(store: Store) -> list[str]:
    table = read_slots(store, NAME)
    assert table is not None
    return [slot.digest for slot in table.slots]


@contextmanager
def never_asked(name: str, model: ModelRef, *_: object) -> Generator[SimpleNamespace]:
    """In place of a server's start: who is named to the gateway is the keeper's, whatever runs."""
    yield SimpleNamespace(url=f"http://{model.digest[:12]}", ended=False)


def test_a_server_that_may_not_have_users_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "model_slot", never_asked)
    monkeypatch.setattr(keeper_module, "DRAIN_S", 0.0)
    store, candidate = Store(tmp_path / "data"), ModelRef(uri="candidate", digest="c" * 64)
    cold, lines = {candidate.digest}, list[str]()
    with SlotKeeper(store, NAME, 32, lines.append, lambda slot: "cold" if slot.digest in cold else "") as keeper:
        keeper.serve([CHAMPION])
        assert listed(store) == [CHAMPION.digest] and not keeper.due
        for _ in range(2):
            keeper.serve([CHAMPION, candidate])
            assert listed(store) == [CHAMPION.digest] and keeper.due, "it runs, and may not have users yet"
        assert [line for line in lines if "gets no users yet: cold" in line] == [lines[-1]], "said once"
        cold.clear()
        keeper.serve([CHAMPION, candidate])
        assert listed(store) == [CHAMPION.digest, candidate.digest] and not keeper.due
        keeper.serve([candidate])
        assert listed(store) == [candidate.digest]
    assert listed(store) == [], "what serves no more is not in the file"


@pytest.mark.slow
@pytest.mark.variant
def test_users_reach_both_models_and_each_knows_who_answered(tmp_path: Path) -> None:
    store, candidate = Store(tmp_path / "data"), sibling(tmp_path / "candidate")
    settings = GatewaySettings(root=str(store.root), model_name=NAME, port=0)
    with ExitStack() as stack:
        cold = {candidate.digest}
        admit = lambda slot: "cold" if slot.digest in cold else ""  # noqa: E731
        keeper = stack.enter_context(SlotKeeper(store, NAME, 32, print, admit))
        keeper.serve([CHAMPION])
        gateway = stack.enter_context(running_gateway(settings, print))
        assert served_by(gateway.url, "ann") == f"{NAME}@{CHAMPION.digest[:12]}", "without a split, the one model"
        keeper.serve([CHAMPION, candidate])
        assert listed(store) == [CHAMPION.digest] and keeper.due, "it runs, and may not have users yet"
        cold.clear()
        keeper.serve([CHAMPION, candidate])
        assert listed(store) == [CHAMPION.digest, candidate.digest] and not keeper.due
        split = Split(
            rollout="r", epoch=1, champion=CHAMPION, champion_weight=50, canary=candidate, canary_weight=50
        )  # fmt: skip
        write_split(store, NAME, split)
        names = {user: served_by(gateway.url, user) for user in map(str, range(20))}
        assert set(names.values()) == {f"{NAME}@{model.digest[:12]}" for model in (CHAMPION, candidate)}
        assert names == {user: served_by(gateway.url, user) for user in names}, "a user stays on their arm"
        assert ask(f"{gateway.url}/v1", requests_of(DemoSource(kind="demo"), "a", 64)) == (64, 0)
        write_split(store, NAME, split.model_copy(update={"epoch": 2, "champion_weight": 100, "canary_weight": 0}))
        keeper.serve([CHAMPION])
        assert {served_by(gateway.url, user) for user in names} == {f"{NAME}@{CHAMPION.digest[:12]}"}
    table = read_slots(store, NAME)
    assert table is not None
    assert not table.slots, "what serves no more is not in the file"
