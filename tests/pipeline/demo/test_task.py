import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.demo.task import Problem, Split, is_held_out, mistaken_solution, problems, solution_steps

pytestmark = pytest.mark.slow

SPLITS: tuple[Split, ...] = ("pretrain", "train", "heldout")
STEP = re.compile(r"(\d+)([-+*])(\d+)=(\d+)\.")
seeds = st.integers(0, 2**32)
splits = st.sampled_from(SPLITS)


def held_out_steps(text: str) -> list[str]:
    return [
        f"{left}{symbol}{right}"
        for left, symbol, right, _ in STEP.findall(text)
        if is_held_out(int(left), symbol, int(right))
    ]


def final_answer(solution: str) -> str:
    return solution.partition("\n#### ")[2]


@given(seed=seeds, split=splits)
def test_problems_are_a_function_of_their_arguments(seed: int, split: Split):
    assert problems(seed, split, 20) == problems(seed, split, 20)
    assert problems(seed, split, 20) != problems(seed + 1, split, 20)
    assert problems(seed, split, 30)[:20] == problems(seed, split, 20)


@given(seed=seeds)
def test_no_training_text_holds_a_held_out_step(seed: int):
    for problem in problems(seed, "pretrain", 50) + problems(seed, "train", 50):
        assert held_out_steps(f"{problem.solution}\n{mistaken_solution(problem)}") == []


def test_the_split_is_disjoint_in_operands_and_in_prompts():
    heldout = problems(0, "heldout", 3000)
    seen = problems(0, "pretrain", 10_000) + problems(0, "train", 10_000)

    def signature(problem: Problem) -> tuple[str, tuple[int, ...]]:
        return problem.kind, problem.operands

    assert not {signature(p) for p in heldout} & {signature(p) for p in seen}
    assert not {p.prompt for p in heldout} & {p.prompt for p in seen}


@given(seed=seeds, split=splits)
def test_solutions_are_right_and_mistaken_ones_are_wrong(seed: int, split: Split):
    for problem in problems(seed, split, 20):
        steps = STEP.findall(problem.solution)
        assert [(int(a), op, int(b), int(c)) for a, op, b, c in steps] == solution_steps(problem.kind, problem.operands)
        assert all({"+": a + b, "-": a - b, "*": a * b}[op] == c for a, op, b, c in _numbers(steps))
        assert final_answer(problem.solution) == problem.answer == steps[-1][3]
        assert re.fullmatch(r"(\d+[-+*]\d+=\d+\.[ \n])+#### \d+", problem.solution)
        assert final_answer(mistaken_solution(problem)) != problem.answer
        assert all(str(operand) in problem.prompt for operand in problem.operands)


def _numbers(steps: list[tuple[str, str, str, str]]) -> list[tuple[int, str, int, int]]:
    return [(int(a), op, int(b), int(c)) for a, op, b, c in steps]
