"""`pt report`: where the page is, and what it says where there is nothing to make one of."""

from pathlib import Path

import pytest

from assets.report import page_path
from jobs import report
from tests.assets.laid import EMBEDDED, Laid
from tests.pipeline.rollout.conftest import NAME


@pytest.fixture
def laid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laid:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFERENCE_TUNING_RECIPE", str(EMBEDDED))
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={tmp_path}/data base_model.name={NAME}")
    return Laid(tmp_path / "data")


def test_the_newest_iteration_is_the_one_that_is_meant(laid: Laid, capsys) -> None:
    first, second = laid.end(laid.begin("a"), "refused"), laid.begin("b")
    assert report.main([]) == 0
    path = page_path(laid.store, second.id)
    assert capsys.readouterr().out.splitlines() == [str(path), f"Open it in a browser: {path.as_uri()}"]
    assert second.id in path.read_text() and not page_path(laid.store, first.id).exists()
    assert report.main([first.id]) == 0 and page_path(laid.store, first.id).exists()


def test_a_page_goes_where_it_is_asked_for(laid: Laid, tmp_path: Path) -> None:
    iteration = laid.end(laid.begin(), "refused")
    assert report.main(["--out", "page.html"]) == 0
    assert f'href="data/iterations/{iteration.id}/traces.json"' in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"), [([], "There is no iteration yet"), (["0123"], "There is no iteration 0123 under")]
)
def test_what_cannot_be_shown_is_refused(laid: Laid, arguments: list[str], words: str, capsys) -> None:
    assert report.main(arguments) == 2
    assert words in capsys.readouterr().err
    assert not laid.store.root.exists()


def test_a_page_that_cannot_be_written_is_said(laid: Laid, tmp_path: Path, capsys) -> None:
    laid.begin()
    (tmp_path / "taken").mkdir()
    assert report.main(["--out", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err
