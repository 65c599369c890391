from __future__ import annotations

import pytest

from pipeline.traces.pii import presidio

pytest.importorskip("presidio_analyzer", reason="the optional cross-check needs the extra `pii`: presidio-analyzer")


def test_presidio_finds_nothing_in_what_the_mask_covers() -> None:
    texts = ["Mail alice@example.com", "Pay with 4111 1111 1111 1111", "from 192.0.2.7", "to DE89370400440532013000"]
    assert presidio.cross_check(texts) == {}


def test_presidio_really_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presidio, "mask", lambda text: text)
    result = presidio.cross_check(["Mail alice@example.com", "Pay with 4111 1111 1111 1111"])
    assert set(result) == {"EMAIL_ADDRESS", "CREDIT_CARD"}
