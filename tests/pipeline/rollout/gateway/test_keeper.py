"""The slots of the embedded gateway as real processes: started, asked through the gateway, ended, started again."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.core.storage import ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.rollout.gateway import keeper as keeper_module
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.split import read_slots

NAME = "arithmetic"
CHAMPION = model_ref(MODEL_DIR)


def listed(store: Store) -> list[str]:
    table = read_slots(store, NAME)
    assert table is not None
    return [slot.digest for slot in table.slots]


@contextmanager
def never_asked(name: str, model: ModelRef, *_: object) -> Generator[SimpleNamespace]:
    """In place of a server's start: who is named to the gateway is the keeper's, whatever runs."""
    if model.uri == "broken":
        raise RuntimeError("it does not start")
    yield SimpleNamespace(url=f"http://{model.digest[:12]}", process=SimpleNamespace(ended=False))


def test_only_what_serves_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "model_slot", never_asked)
    monkeypatch.setattr(keeper_module, "DRAIN_S", 0.0)
    store, candidate = Store(tmp_path / "data"), ModelRef(uri="candidate", digest="c" * 64)
    broken = ModelRef(uri="broken", digest="d" * 64)
    with SlotKeeper(store, NAME, 32, print) as keeper:
        keeper.serve([CHAMPION])
        assert listed(store) == [CHAMPION.digest] and not keeper.due
        with pytest.raises(RuntimeError, match="does not start"):
            keeper.serve([CHAMPION, candidate, broken])
        assert listed(store) == [CHAMPION.digest, candidate.digest], "the others serve"
        keeper.serve([candidate])
        assert listed(store) == [candidate.digest]
    assert listed(store) == [], "what serves no more is not in the file"
