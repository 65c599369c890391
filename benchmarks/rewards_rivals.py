"""What `benchmarks.rewards` measures against, and the completions that all of them label.

Rivals: a loop over math-verify as its documentation has it, and TRL's own accuracy reward, each with its own
time-outs left on. They run in a process that can be killed, because they cannot always be stopped.
"""

import json
import logging
import random
import resource
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

PER_PROMPT = 4
"""Completions of one prompt, as in a small GRPO group: they share their reference."""


class Item(NamedTuple):
    """A completion that ends in a boxed answer, its reference in dollars (all rivals read both), and the truth."""

    completion: str
    reference: str
    right: bool


class Labels(NamedTuple):
    """1.0, 0.0 or None for each item, and what they cost without start and imports."""

    scores: list[float | None]
    wall_s: float
    cpu_s: float


def solutions(path: Path, seed: int = 7) -> list[str]:
    """GSM8K's gold solutions, or made ones of the same shape where that file is absent."""
    if path.is_file():
        return [json.loads(line)["answer"] for line in path.read_text().splitlines()]
    draw = random.Random(seed)
    steps = [[draw.randint(2, 900) for _ in range(draw.randint(2, 8))] for _ in range(1319)]
    return [
        "\n".join(f"Then there are {n} more, which makes {sum(s[: i + 1]):,} so far." for i, n in enumerate(s))
        + f"\n#### {sum(s)}"
        for s in steps
    ]


def mixed(texts: Sequence[str], count: int, seed: int = 7) -> list[Item]:
    """One form of answer a prompt, in equal shares: a plain number, fraction, root, polynomial, set, interval, tuple,
    percentage. A completion is right with probability 1/2 (then in the reference's own words or in others, 1:1), else
    wrong; one in twenty gives no answer. So two thirds and more need math-verify.
    """
    draw = random.Random(seed)
    items: list[Item] = []
    while len(items) < count:
        gold, same, other = _form(draw)
        for _ in range(min(PER_PROMPT, count - len(items))):
            reasoning = draw.choice(texts).rpartition("####")[0]
            right, silent = draw.random() < 0.5, draw.random() < 0.05
            answer = draw.choice([gold, same]) if right else draw.choice(other)
            end = "I cannot say." if silent else f"The final answer is $\\boxed{{{answer}}}$."
            items.append(Item(f"{reasoning}{end}", f"${gold}$", right and not silent))
    return items


def plain(texts: Sequence[str], count: int, seed: int = 7) -> list[Item]:
    """The solutions' own numbers, every other one off by one."""
    draw = random.Random(seed)
    items: list[Item] = []
    for number in range(count):
        reasoning, _, gold = draw.choice(texts).rpartition("#### ")
        value = int(gold.replace(",", "")) + number % 2
        items.append(Item(f"{reasoning}The final answer is $\\boxed{{{value}}}$.", f"${gold}$", number % 2 == 0))
    return items


def _form(draw: random.Random) -> tuple[str, str, list[str]]:
    """A reference, the same in other words, and two wrong answers."""
    a, b = draw.randint(2, 60), draw.randint(61, 99)
    k = draw.randint(2, 5)
    return draw.choice(
        [
            (f"{1000 + a}", f"1,{a:03}", [f"{1001 + a}", f"{a}"]),
            (rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{k * a}}}{{{k * b}}}", [rf"\frac{{{a + 1}}}{{{b}}}", f"{a}"]),
            (rf"{k}\sqrt{{{a}}}", rf"\sqrt{{{k * k * a}}}", [rf"{k + 1}\sqrt{{{a}}}", rf"\sqrt{{{a}}}"]),
            (f"x^2+{a}x+{b}", f"{b}+{a}x+x^2", [f"x^2+{a}x-{b}", f"x^2-{a}x+{b}"]),
            (rf"\{{{a},{b},{k}\}}", rf"\{{{k},{a},{b}\}}", [rf"\{{{a},{b}\}}", rf"\{{{a},{b},{k},1\}}"]),
            (f"[{a},{b})", rf"\left[{a}, {b}\right)", [f"({a},{b})", f"[{a},{b}]"]),
            (f"({b},{a},{k})", f"({b}, {a}, {k})", [f"({a},{b},{k})", f"({b},{a})"]),
            (rf"{a}\%", rf"\frac{{{a}}}{{100}}", [rf"{a + 1}\%", rf"{b}\%"]),
        ]
    )


CORRUPTIONS = {
    "one more": lambda n: n + 1,
    "one less": lambda n: n - 1,
    "times ten": lambda n: n * 10,
    "a tenth": lambda n: n / 10,
    "sign": lambda n: -n,
    "two digits swapped": lambda n: Fraction(str(n)[:-2] + str(n)[-1] + str(n)[-2]) if abs(n) > 9 else n,
    "last digit dropped": lambda n: Fraction(str(n)[:-1]) if abs(n) > 9 else n,
}


def corrupted(gold: str) -> dict[str, str]:
    """Wrong answers made from a right one, each a number in decimals."""
    value = Fraction(gold.replace(",", ""))
    changed = {name: change(value) for name, change in CORRUPTIONS.items()}
    return {name: decimals(new) for name, new in changed.items() if new != value}


def decimals(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value)}"


def serial(items: list[Item]) -> Labels:
    """Parse both, verify, next: math-verify's documentation in a loop."""
    from math_verify import parse, verify

    before, started = _cpu_s(), time.monotonic()
    scores = [float(verify(parse(item.reference), parse(item.completion))) for item in items]
    return Labels(list(scores), time.monotonic() - started, _cpu_s() - before)


def trl(items: list[Item]) -> Labels:
    """One call of TRL's accuracy reward."""
    from trl.rewards import accuracy_reward

    before, started = _cpu_s(), time.monotonic()
    completions = [[{"role": "assistant", "content": item.completion}] for item in items]
    scores = accuracy_reward(completions=completions, solution=[item.reference for item in items])
    return Labels(scores, time.monotonic() - started, _cpu_s() - before)


WARM = [Item(r"So it is $\boxed{\frac{1}{2}}$.", "$0.5$", True)] * 3


def warm_serial() -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it prints whole completions at each time-out
    serial(WARM)


def warm_trl() -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    trl(WARM)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
