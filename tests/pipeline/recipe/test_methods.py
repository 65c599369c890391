"""The union of the methods: each is whole, and no stage knows which there are."""

import ast
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.recipe import Training
from pipeline.recipe.method import EvidenceKey
from pipeline.recipe.methods import METHODS, AnyMethod, Method, MethodName, MethodSettings
from pipeline.selection.evidence import Evidence
from pipeline.selection.preferences import PreferenceDataset
from pipeline.training.schedule import SCHEMAS

ROOT = Path(__file__).parents[3]
MAY_NAME_THEM = {"pipeline/recipe/method", "pipeline/training/methods", "pipeline/training/nemo", "jobs/openai_export"}
"""The methods themselves, and what translates them: an engine's rendering, and the reader of OpenAI's jobs."""


def test_the_names_the_union_and_the_settings_agree() -> None:
    members = get_args(get_args(AnyMethod)[0])
    assert [member.model_fields["kind"].default for member in members] == list(get_args(MethodName))
    assert list(METHODS) == list(MethodSettings.model_fields) == list(get_args(MethodName))
    assert [METHODS[name] for name in METHODS] == list(members)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_evidence_rows_and_columns_that_exist(name: MethodName) -> None:
    method = METHODS[name]
    assert set(method.needs) <= set(get_args(EvidenceKey)) and method.needs
    assert "coverage" in method.needs or name in ("sft", "kto"), "few users leave a thumb"
    assert method.material in {*Evidence.model_fields, *vars(Evidence)}
    assert method.table in PreferenceDataset.model_fields
    assert set(method.columns) <= set(SCHEMAS[method.table].names)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_answers_every_question(name: MethodName) -> None:
    method = Training().by_name()[name]
    unanswered = [
        member
        for member, value in vars(Method).items()
        if (callable(value) or isinstance(value, property))
        and _raises(value)
        and getattr(type(method), member) is value
    ]
    assert unanswered == []
    assert method.examples_per_update > 0 and method.scheduled_rows >= method.steps
    assert method.flops(prompt_tokens=10, completion_tokens=20) > 0


def _raises(value: Any) -> bool:
    function = value.fget if isinstance(value, property) else value
    return "NotImplementedError" in getattr(getattr(function, "__code__", None), "co_names", ())


@pytest.mark.slow
def test_no_stage_knows_which_methods_there_are() -> None:
    """A method is added by a module, the union and tests: its name stands in no other source file."""
    names = set(get_args(MethodName))
    naming = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for folder in ("pipeline", "assets", "evals", "k8s", "jobs")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if not str(file.relative_to(ROOT)).startswith(tuple(MAY_NAME_THEM))
        for node in ast.walk(ast.parse(file.read_text()))
        if (isinstance(node, ast.Constant) and node.value in names)
        or (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.Name) and node.id in {"GRPO", "DPO", "KTO", "SFT"})
    ]
    assert naming == []
