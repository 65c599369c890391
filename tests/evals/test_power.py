"""The check before a launch against the gate: what it refuses never passes, what it lets through can."""

from typing import Any

import pytest

from evals.gate import Verdict
from evals.power import UNKNOWN_MODEL, model_refusals, shortfalls
from evals.suites import Suite
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Evaluation
from tests.suites import embedded_suite


def several(kit: Any, roles: dict[str, str], count: int = 400, **changes: Any) -> tuple[list[Suite], Evaluation]:
    """Suites of these names and roles, of items that are clusters of their own."""
    suites = [
        {"kind": "items", "preset": "arithmetic", "name": name, "role": role, "items": count, "margin": 0.05}
        for name, role in roles.items()
    ]
    section = kit.section(suites=suites, **changes)
    return [kit.suite(section, 1, name, count) for name in roles], section


@pytest.mark.parametrize("clusters", [29, 30, 58, 59, 97, 98, 99, 150])
@pytest.mark.parametrize("margin", [0.03, 0.05])
def test_a_guard_that_cannot_be_held_is_refused(kit: Any, clusters: int, margin: float) -> None:
    section = kit.section(items=2 * clusters, guard_margin=margin, max_standard_error=0.2)
    items = kit.suite(section)
    flawless = {"no_answer": 0.0, "cut": 0.0}
    old, new = (kit.arm(name, section, items, skill, **flawless) for name, skill in (("old", 0.2), ("new", 0.9)))
    passes = kit.judge(section, items, old, new).verdict is Verdict.PASS
    assert passes is not bool(shortfalls([items], section, UNKNOWN_MODEL))


def test_a_refusal_names_the_suite_it_is_about(kit: Any) -> None:
    suites, section = several(kit, {"one": "target", "two": "guard", "three": "report"}, count=20)
    short = shortfalls(suites, section, UNKNOWN_MODEL)
    assert [reason.split(":")[0] for reason in short] == ["suite one"] * 3 + ["suite two"] * 2  # a guard has no gain
    assert shortfalls(suites[2:], section, UNKNOWN_MODEL) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"guard_margin": 0.0},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"false_discovery_rate": 0.0},
        {"suites": [{"kind": "items", "preset": "arithmetic", "items": 1}]},
        {"suites": [{"kind": "items", "preset": "arithmetic", "floor": 1.0}]},
    ],
)
def test_limits_that_nothing_can_keep_are_refused(changes: dict[str, Any]) -> None:
    section = Evaluation.model_validate(changes)
    assert len(shortfalls([embedded_suite(section)], section, UNKNOWN_MODEL)) >= 1


@pytest.mark.parametrize(
    ("serving", "limit", "refused"),
    [
        ({"kind": "transformers"}, 1023, False),
        ({"kind": "transformers"}, 1024, True),
        ({"kind": "vllm", "max_model_len": 4096}, 1024, False),
        ({"kind": "vllm", "max_model_len": 4096}, 4096, True),
    ],
)
def test_answers_beyond_the_models_context_are_refused(kit: Any, serving: Any, limit: int, refused: bool) -> None:
    """The embedded model's is 1,024 tokens."""
    suite = {"kind": "items", "preset": "arithmetic", "max_completion_tokens": limit}
    section = kit.section(suites=[suite], serving=serving)
    found = model_refusals([kit.suite(section)], section, str(MODEL_DIR))
    assert [f"an answer may take {limit:,} tokens" in line for line in found] == [True] * refused


def test_the_defaults_have_power_enough() -> None:
    section = Evaluation()
    assert shortfalls([embedded_suite(section)], section, UNKNOWN_MODEL) == []
