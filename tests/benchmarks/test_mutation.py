"""The mutants of a small module, and what its tests would have to import again."""

from pathlib import Path

import pytest

from benchmarks.mutation import ROOT, TESTS, applied, mutants
from benchmarks.mutation_runner import dependents

MODULE = "pipeline/guarded.py"
SOURCE = '''"""Shares."""


def share(part: int, whole: int = 4) -> float:
    """Of the whole."""
    if part < 0 or part > whole:
        raise ValueError(f"{part} is no part: {whole + 1}")
    return part / whole
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "pipeline/__init__.py": "",
        MODULE: SOURCE,
        "tests/test_guarded.py": "from pipeline.guarded import share\n",
    }.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


def test_mutants_change_what_decides_and_nothing_else() -> None:
    changes = {(each.line, each.operator, each.after) for each in mutants(SOURCE)}
    assert changes == {
        (4, "constant", "(5)"),
        (6, "never", "False"),
        (6, "always", "True"),
        (6, "and/or", "(part < 0 and part > whole)"),
        (6, "operand", "(part < 0)"),
        (6, "operand", "(part > whole)"),
        (6, "boundary", "(part <= 0)"),
        (6, "boundary", "(part >= whole)"),
        (6, "comparison", "(part >= 0)"),
        (6, "comparison", "(part <= whole)"),
        (6, "constant", "(1)"),
        (7, "no raise", "pass"),
        (8, "return", "return None"),
        (8, "arithmetic", "(part * whole)"),
    }
    (unguarded,) = [each for each in mutants(SOURCE) if each.operator == "no raise"]
    assert applied(SOURCE, unguarded).splitlines()[6] == "        pass"


def test_dependents_are_reached_through_others(tree: Path) -> None:
    (tree / "pipeline" / "one.py").write_text("from pipeline.guarded import share\n")
    (tree / "pipeline" / "two.py").write_text("import pipeline.one\n")
    (tree / "pipeline" / "three.py").write_text("import math\n")
    assert dependents(tree, MODULE) == {"pipeline.guarded", "pipeline.one", "pipeline.two", "tests.test_guarded"}
    (tree / "pipeline" / "__init__.py").write_text("from pipeline.guarded import share\n")
    assert dependents(tree, MODULE) >= {"pipeline", "pipeline.three"}, "a module takes its package with it"


def test_each_module_that_decides_has_tests_that_exist() -> None:
    named = [*TESTS, *(test for tests in TESTS.values() for test in tests)]
    assert [name for name in named if not (ROOT / name).is_file()] == []
