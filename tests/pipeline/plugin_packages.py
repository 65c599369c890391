"""Installed packages for tests of plug-ins: a module and the record that pip leaves beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install `source` as a module, with one entry point; another version replaces it."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])

    def once(group: str, point: str, source: str, version: str = "1.0", distribution: str = "acme") -> None:
        module = f"{distribution}_{point.replace('-', '_')}_plugin"
        for old in site.glob(f"{distribution}-*.dist-info"):
            for file in old.iterdir():
                file.unlink()
            old.rmdir()
        monkeypatch.delitem(sys.modules, module, raising=False)
        record = site / f"{distribution}-{version}.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (record / "entry_points.txt").write_text(f"[preference_tuning.{group}]\n{point} = {module}:make\n")
        (site / f"{module}.py").write_text(source)

    return once
