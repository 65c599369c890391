"""The hashes that are kept are of the versions that are pinned, and are what pip takes."""

import re
from pathlib import Path

import pytest

from jobs.pinned_hashes import APART, hashes_of, pins, text_of

ROOT = Path(__file__).parents[2]
KEPT = ("cpu",)
"""Sets whose hashes are in the repository."""
LINE = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:\+\w+)?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", KEPT)
def test_every_pin_has_its_hashes(name: str) -> None:
    wanted = {
        key(package): version for package, version in pins((ROOT / f"constraints-{name}.txt").read_text()).items()
    }
    text = (ROOT / f"hashes-{name}.txt").read_text()
    hashed = {key(match[1]): match[2] for match in LINE.finditer(text)}
    without = {key(each) for each in re.findall(r"([\w.-]+)==\S+?(?=[,.](?: |$))", text.splitlines()[0])}
    assert hashed == {k: v for k, v in wanted.items() if k not in without and k not in APART}


@pytest.mark.parametrize("name", [f"hashes-{name}.txt" for name in KEPT])
def test_a_file_of_hashes_has_nothing_else_in_it(name: str) -> None:
    head, rest = (ROOT / name).read_text().split("\n", 1)
    assert head.startswith("# ")
    assert LINE.sub("", rest).strip() == ""
    assert "://" not in head


def test_a_report_of_pip_becomes_hashes() -> None:
    digests = ["a" * 64, "b" * 64]
    report = {
        "install": [
            {
                "metadata": {"name": "One", "version": "1.0"},
                "download_info": {"archive_info": {"hashes": {"sha256": d}}},
            }
            for d in digests
        ]
    }
    lines = ["# head", "One==1.0 \\", f"    --hash=sha256:{digests[0]} \\", f"    --hash=sha256:{digests[1]}", ""]
    assert text_of(hashes_of(report), "head").split("\n") == lines
    with pytest.raises(ValueError, match=r"no sha256 for One==1\.0"):
        hashes_of({"install": [{**report["install"][0], "download_info": {}}]})
