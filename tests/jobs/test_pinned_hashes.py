"""The hashes that are kept are of the versions that are pinned, and are what pip takes."""

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.pinned_hashes import APART, digest_of, pins, text_of

ROOT = Path(__file__).parents[2]
KEPT = ("cpu", "gpu")
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


@pytest.mark.parametrize("name", [path.name for path in sorted(ROOT.glob("hashes-*.txt"))])
def test_a_file_of_hashes_has_nothing_else_in_it(name: str) -> None:
    head, rest = (ROOT / name).read_text().split("\n", 1)
    assert head.startswith("# ")
    assert LINE.sub("", rest).strip() == ""
    assert "://" not in head


def test_a_digest_is_the_listing_s_or_that_of_a_file(tmp_path: Path) -> None:
    listed = SimpleNamespace(hash_name="sha256", hash="a" * 64, is_file=False, filename="one.whl")
    assert digest_of(listed) == "a" * 64
    (tmp_path / "two.whl").write_bytes(b"wheel")
    here = SimpleNamespace(hash_name=None, hash=None, is_file=True, file_path=str(tmp_path / "two.whl"))
    assert digest_of(here) == hashlib.sha256(b"wheel").hexdigest()
    with pytest.raises(ValueError, match=r"no sha256 for one\.whl"):
        digest_of(SimpleNamespace(**{**vars(listed), "hash_name": "md5"}))


def test_the_text_is_what_pip_reads() -> None:
    lines = ["# head", "One==1.0 \\", f"    --hash=sha256:{'a' * 64} \\", f"    --hash=sha256:{'b' * 64}", ""]
    assert text_of({"One==1.0": {"b" * 64, "a" * 64}}, "head").split("\n") == lines
