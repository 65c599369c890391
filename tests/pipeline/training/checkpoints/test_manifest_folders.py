from pathlib import Path

import pytest

from pipeline.training.checkpoints import manifest

from .conftest import trained


def test_a_removal_that_is_cut_leaves_nothing_under_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trained(tmp_path / "step-000005", 5)

    def cut(path: Path, ignore_errors: bool = False) -> None:
        if path.exists():
            next(path.iterdir()).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(manifest.shutil, "rmtree", cut)
        with pytest.raises(KeyboardInterrupt):
            manifest.remove(folder)
    assert not folder.exists()
    assert manifest.published(tmp_path) == []
    manifest.clear_hidden(tmp_path)
    assert list(tmp_path.iterdir()) == []
