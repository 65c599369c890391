"""The demo task: arithmetic word problems, their solutions and typical mistakes. The split is by operands: an
elementary step such as `27+35` is held out under every name, order and template."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

Split = Literal["pretrain", "train", "heldout"]

HELD_OUT_EVERY = 8
"""One elementary step in this many is held out."""

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivy", "Jon", "Kim", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pears", "pens", "shells", "stamps", "tins", "toys")

TEMPLATES = {
    "add": (
        "{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?",
        "{name} has {a} {things}. {other} has {b} {things}. How many {things} do they have in all?",
        "{name} sold {a} {things} on Monday and {b} on Tuesday. How many {things} did {name} sell?",
    ),
    "subtract": (
        "{name} has {a} {things} and gives {b} to {other}. How many {things} does {name} have left?",
        "There are {a} {things} in a box. {name} takes {b} of them. How many {things} are left?",
        "{name} had {a} {things} and lost {b}. How many {things} are left?",
    ),
    "multiply_add": (
        "{name} has {a} bags with {b} {things} each and {c} more {things}. How many {things} does {name} have in all?",
        "{name} buys {a} boxes of {b} {things}. {other} gives {name} {c} more. How many {things} does {name} have now?",
        "{name} had {c} {things} and found {a} bags of {b} {things}. How many {things} does {name} have now?",
    ),
    "multiply_subtract": (
        "{name} has {a} bags with {b} {things} each and gives {c} to {other}. How many {things} does {name} have left?",
        "{name} packs {a} bags of {b} {things} and sells {c} of them. How many {things} are left?",
        "There are {b} {things} in each of {a} boxes. {name} takes {c}. How many {things} are left?",
    ),
    "add_subtract": (
        "{name} has {a} {things}, buys {b} more and gives {c} to {other}. How many {things} does {name} have left?",
        "{name} had {a} {things}. {name} found {b} and lost {c}. How many {things} does {name} have now?",
        "{name} has {a} {things} and {other} has {b}. They sell {c}. How many {things} are left?",
    ),
}
SYMBOLS = {
    "add": "+",
    "subtract": "-",
    "multiply_add": "*+",
    "multiply_subtract": "*-",
    "add_subtract": "+-",
}
KINDS = tuple(TEMPLATES)


@dataclass(frozen=True)
class Problem:
    """A word problem. `solution`: `7*2=14. 14+16=30.\\n#### 30`; `answer`: its last number."""

    prompt: str
    answer: str
    solution: str
    kind: str
    operands: tuple[int, ...]


class Step(NamedTuple):
    """A step of a solution; `result` may be a mistake."""

    left: int
    symbol: str
    right: int
    result: int


def problems(seed: int, split: Split, n: int) -> list[Problem]:
    """`n` problems with distinct prompts, the same for the same arguments. `heldout` problems need a held-out step; the
    others have none, in the right solution or in the mistaken one."""
    rng = random.Random(f"{split}:{seed}")
    by_prompt: dict[str, Problem] = {}
    while len(by_prompt) < n:
        problem = _draw(rng, split)
        by_prompt.setdefault(problem.prompt, problem)
    return list(by_prompt.values())


def mistaken_solution(problem: Problem) -> str:
    return _written(_mistaken_steps(problem.kind, problem.operands))


@cache
def is_held_out(left: int, symbol: str, right: int) -> bool:
    """Whether a step is kept from all training. Products never are: the times table is learnt as a whole."""
    if symbol == "*":
        return False
    first, second = sorted((left, right)) if symbol == "+" else (left, right)
    digest = hashlib.sha256(f"{first}{symbol}{second}".encode()).digest()
    return digest[0] % HELD_OUT_EVERY == 0


def solution_steps(kind: str, operands: tuple[int, ...]) -> list[Step]:
    return list(_chain(SYMBOLS[kind], operands))


def _mistaken_steps(kind: str, operands: tuple[int, ...]) -> list[Step]:
    right = solution_steps(kind, operands)
    if kind in ("add", "subtract"):  # drops the carry
        (step,) = right
        return [step._replace(result=step.result + (10 if kind == "subtract" else -10))]
    if kind == "multiply_add":  # adds instead of multiplying
        return list(_chain("++", operands))
    return right[:1]  # stops after step one


def _chain(symbols: str, operands: tuple[int, ...]) -> Iterator[Step]:
    total = operands[0]
    for symbol, operand in zip(symbols, operands[1:], strict=True):
        result = {"+": total + operand, "-": total - operand, "*": total * operand}[symbol]
        yield Step(total, symbol, operand, result)
        total = result


def _written(steps: list[Step]) -> str:
    worked = " ".join(f"{left}{symbol}{right}={result}." for left, symbol, right, result in steps)
    return f"{worked}\n#### {steps[-1].result}"


def _draw(rng: random.Random, split: Split) -> Problem:
    kind = rng.choice(KINDS)
    while not _suits(kind, operands := _draw_operands(rng, kind), split):
        pass
    name, other = rng.sample(NAMES, 2)
    numbers = dict(zip("abc", operands, strict=False))
    prompt = rng.choice(TEMPLATES[kind]).format(name=name, other=other, things=rng.choice(THINGS), **numbers)
    steps = solution_steps(kind, operands)
    return Problem(prompt, str(steps[-1].result), _written(steps), kind, operands)


def _draw_operands(rng: random.Random, kind: str) -> tuple[int, ...]:
    low, high = (2, 9) if kind.startswith("multiply") else (11, 89)
    first_two = rng.randint(low, high), rng.randint(low, high)
    return first_two if len(SYMBOLS[kind]) == 1 else (*first_two, rng.randint(11, 89))


def _suits(kind: str, operands: tuple[int, ...], split: Split) -> bool:
    """Whether the operands make a problem of this kind, with a mistake to make, on this side of the split."""
    steps, mistaken = solution_steps(kind, operands), _mistaken_steps(kind, operands)
    if len(steps) == 1 and not _carries(steps[0]):
        return False
    if any(step.result >= 100 for step in steps[:-1]) or steps[-1].result <= 0:
        return False
    if mistaken[-1].result == steps[-1].result:
        return False
    if split == "heldout":
        return any(is_held_out(*step[:3]) for step in steps)
    return not any(is_held_out(*step[:3]) for step in [*steps, *mistaken])


def _carries(step: Step) -> bool:
    left, right = step.left % 10, step.right % 10
    return left + right >= 10 if step.symbol == "+" else left < right
