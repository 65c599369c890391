"""The hashes that are kept are of the versions that are pinned."""

import re
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parents[1] / "constraints"
WITHOUT = {"torch", "deepspeed"}
"""torch's build for CPUs is on another index, and DeepSpeed has no wheel."""
PIN = re.compile(r"^([\w.-]+)==([^\s;#]+)", re.MULTILINE)
HASHED = re.compile(r"^([\w.-]+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+$", re.MULTILINE)


def versions(pattern: re.Pattern[str], text: str) -> dict[str, str]:
    return {re.sub(r"[-_.]+", "-", match[1]).lower(): match[2] for match in pattern.finditer(text)}


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_every_pin_has_its_hashes(name: str) -> None:
    pins = versions(PIN, (CONSTRAINTS / f"{name}.txt").read_text())
    text = (CONSTRAINTS / f"hashes-{name}.txt").read_text()
    assert versions(HASHED, text) == {package: version for package, version in pins.items() if package not in WITHOUT}
    assert re.sub(r"(?m)^#.*$", "", HASHED.sub("", text)).strip() == "", "nothing else is in it"
