"""Hostile names by kind, for every field of the recipe that becomes a path, a label, a filter, a host or a command."""

import json
from pathlib import Path

import pytest

from pipeline.recipe import load
from tests.loop import EMBEDDED

CLUSTER = EMBEDDED.with_name("spot_h200_grpo.yaml")
HOSTILE = {
    "traversal": "../../etc/passwd",
    "two dots": "..",
    "NUL": "a\0b",
    "line break": "a\nb: c",
    "quote of a filter": "a' OR name LIKE '%",
    "shell": "$(id)",
    "HTML": "<script>alert(1)</script>",
    "direction of reading": "a\u202eb",
    "much too long": "x" * 5000,
    "empty": "",
}
"""By kind; each is refused in each of NAMES."""
LINES = ("NUL", "line break", "direction of reading", "much too long")
"""Those that a text for people refuses."""
HTTP_ROUTE = "rollout.traffic={kind: http_route}"
NAMES = {
    "base_model.name": (EMBEDDED, ""),
    "evaluation.suites.0.name": (EMBEDDED, ""),
    "rollout.traffic.namespace": (EMBEDDED, HTTP_ROUTE),
    "rollout.traffic.pool": (EMBEDDED, "rollout.traffic={kind: inference_pool}"),
    "compute.kubernetes.namespace": (CLUSTER, ""),
    "compute.kubernetes.claim": (CLUSTER, ""),
    "compute.kubernetes.instance_type": (CLUSTER, ""),
}


def refusal(recipe: Path, field: str, value: str, before: str) -> str:
    overrides = [*([before] if before else []), f"{field}={json.dumps(value)}"]
    with pytest.raises(ValueError) as refused:
        load(recipe, overrides)
    return str(refused.value)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("field", NAMES)
def test_a_hostile_name_is_refused_in_one_short_line(field: str, kind: str) -> None:
    recipe, before = NAMES[field]
    text = refusal(recipe, field, HOSTILE[kind], before)
    assert field in text.splitlines()[1]
    assert len(text.splitlines()) <= 3 and len(text) < 1000
    assert not {"\0", "\u202e"} & set(text)


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("field", ["name", "compute.accelerator.name"])
def test_a_text_for_people_is_one_line(field: str, kind: str) -> None:
    assert field in refusal(EMBEDDED, field, HOSTILE[kind], "")


@pytest.mark.parametrize("path", ["../up", "/a/../b", "/a/./b", "relative", "/a b", "/a\n", "/$(id)", "/"])
def test_a_mount_is_an_absolute_path(path: str) -> None:
    assert "mount" in refusal(CLUSTER, "compute.kubernetes.mount", path, "")


@pytest.mark.parametrize("key", ["training.api_keyy", "judge_api_key", "rewards.judge.password"])
def test_a_wrong_key_does_not_show_its_value(key: str) -> None:
    text = refusal(EMBEDDED, key, "a-value-of-no-known-form", "rewards.judge={model: m, digest: d}")
    assert "there is no such field" in text and "a-value-of" not in text


@pytest.mark.parametrize("text", ["a: 1", "a: &x [1]\nb: *x", "a: !!python/object/apply:os.system [id]"])
def test_a_hostile_document_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ValueError) as refused:
        load(tmp_path / "recipe.yaml")
    assert len(str(refused.value)) < 1000
