"""The mutants of a small module, and that its tests kill the one that they would miss."""

from pathlib import Path

import pytest

from benchmarks.mutants import applied, mutants
from benchmarks.mutation import ROOT, TESTS, sample, trials
from benchmarks.mutation_runner import Runner, dependents

MODULE, TEST = "pipeline/guarded.py", "tests/test_guarded.py"
SOURCE = '''"""Shares."""


def share(part: int, whole: int = 4) -> float:
    """Of the whole."""
    if part < 0 or part > whole:
        raise ValueError(f"{part} is no part: {whole + 1}")
    return part / whole
'''
TESTED = """from pipeline.guarded import share
import pytest

def test_a_share():
    assert share(1) == 0.25
    assert share(4) == 1

def test_a_part_is_not_negative():
    with pytest.raises(ValueError):
        share(-1)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {"pipeline/__init__.py": "", MODULE: SOURCE, TEST: TESTED}.items():
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


def test_a_sample_is_that_of_its_seed() -> None:
    assert sample(SOURCE, 5, "1") == sample(SOURCE, 5, "1") != sample(SOURCE, 5, "2")
    assert sample(SOURCE, 0, "1") == mutants(SOURCE)
    assert {each.operator for each in sample(SOURCE, 9, "1", "operand")} == {"operand"}


@pytest.mark.variant
@pytest.mark.slow
def test_a_guard_without_a_test_survives_its_removal(tree: Path) -> None:
    judged = list(trials(tree, MODULE, [TEST], [each for each in mutants(SOURCE) if each.operator == "operand"]))
    assert [(each.mutant.after, each.trial.status, each.trial.by) for each in judged] == [
        ("(part < 0)", "passed", ""),
        ("(part > whole)", "failed", f"{TEST}::test_a_part_is_not_negative"),
    ]
    assert (tree / MODULE).read_text() == SOURCE


@pytest.mark.variant
@pytest.mark.slow
def test_what_never_ends_is_ended(tree: Path) -> None:
    with Runner(tree, MODULE, [TEST]) as runner:
        assert runner.run().status == "passed"
        (tree / MODULE).write_text(SOURCE.replace("    if part", "    while part == 4:\n        pass\n    if part"))
        assert runner.run(within_s=1.0).status == "timed out"


@pytest.mark.variant
@pytest.mark.slow
def test_tests_that_fail_by_themselves_are_refused(tree: Path) -> None:
    (tree / TEST).write_text(TESTED.replace("0.25", "0.5"))
    with pytest.raises(RuntimeError, match=r"test_a_share\. Mend them"):
        next(trials(tree, MODULE, [TEST], mutants(SOURCE)))


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
