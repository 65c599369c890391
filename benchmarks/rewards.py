"""What checking answers costs, and what it gets wrong: `python -m benchmarks.rewards [--small]`. Our checker and a
serial loop over math-verify label the same completions; pathological ones are among them. The last line is JSON:
`speedup_*` (wall-clock), `cpu_ratio_*`, `lost_labels` of ordinary completions and `ours_mislabelled` pathological ones
called correct."""

import json
import logging
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import cpu_s
from benchmarks.parts import options
from pipeline.recipe.rewards import Verifier
from pipeline.rewards.verifiers import Grader, Outcome, VerifierTask, final_answer, plain_number, reference_answer
from pipeline.rewards.verifiers.pool import Pool, Work, WorkerFailure

PER_PROMPT = 4
"""Completions of one prompt, as in a small GRPO group: they share their reference."""


class Item(NamedTuple):
    """A completion that ends in a boxed answer, its reference in dollars (the rival reads both), and the truth."""

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
        return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]
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


def serial(items: list[Item]) -> Labels:
    """Parse both, verify, next: math-verify's documentation in a loop."""
    from math_verify import parse, verify

    before, started = time.process_time(), time.monotonic()
    scores = [float(verify(parse(item.reference), parse(item.completion))) for item in items]
    return Labels(list(scores), time.monotonic() - started, time.process_time() - before)


WARM = [Item(r"So it is $\boxed{\frac{1}{2}}$.", "$0.5$", True)] * 3


def warm_serial() -> None:
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it prints whole completions at each time-out
    serial(WARM)


GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"
WORKERS = 2
Rival = Pool[list[Item], Labels]


def main() -> None:
    is_small = options(__doc__, "a twentieth of everything, within a minute or two").parse_args().small
    print(json.dumps(run(GSM8K, 100 if is_small else 2000)))


def run(gsm8k: Path, count: int) -> dict[str, float]:
    """Every figure, for `count` completions."""
    texts = solutions(gsm8k)
    with (
        closing(Pool(Work(serial, warm_serial), 1, 16_384)) as rival,
        closing(Grader(Verifier(workers=WORKERS, timeout_s=5.0))) as check,
    ):
        check([VerifierTask(rf"\boxed{{\frac{{{n}}}{{7}}}}", "0.5") for n in range(64)])  # both workers are up
        items = mixed(texts, count)
        needing = sum(_needs_workers(item) for item in items)
        print(f"{count:,} completions, mean {sum(len(i.completion) for i in items) / count:.0f} characters, "
                  f"{needing / count:.0%} of them for math-verify", flush=True)  # fmt: skip
        figures = {"items": count, "needing_math_verify": round(needing / count, 3)}
        figures |= throughput(items, check, rival)
    return figures | survival(items)


def throughput(items: list[Item], check: Grader, rival: Rival) -> dict[str, float]:
    """The same items labelled by each, a quarter at a time and in turn."""
    ways: dict[str, Callable[[list[Item]], Labels]] = {
        "ours": lambda part: _ours(part, check),
        "serial": lambda part: _ask(rival, part, 3600.0),
    }
    took: dict[str, list[Labels]] = {name: [] for name in ways}
    size = -(-len(items) // 4)
    for number, start in enumerate(range(0, len(items), size)):
        for name in sorted(ways, reverse=number % 2 == 1):
            took[name].append(ways[name](items[start : start + size]))
    wall = {name: sum(labels.wall_s for labels in parts) for name, parts in took.items()}
    cpu = {name: sum(labels.cpu_s for labels in parts) for name, parts in took.items()}
    figures = {
        "speedup_to_serial": round(wall["serial"] / wall["ours"], 2),
        "cpu_ratio_to_serial": round(cpu["serial"] / cpu["ours"], 2),
    }
    for name, parts in took.items():
        scores = (score for part in parts for score in part.scores)
        errors = sum(score != float(item.right) for score, item in zip(scores, items, strict=True))
        figures[f"{name}_errors"] = errors
        print(f"{name:<7} {wall[name]:7.2f} s  {cpu[name]:7.2f} CPU s  {len(items) / wall[name]:8,.0f} items/s"
              f"  {errors} labels wrong or missing", flush=True)  # fmt: skip
    return figures


def survival(items: list[Item]) -> dict[str, float]:
    """One pathological completion after every 99 ordinary ones."""
    from benchmarks.pathological import MATHS

    poison = list(MATHS.values())[: max(2, len(items) // 100)]
    checks = [VerifierTask(item.completion, item.reference) for item in items]
    every = len(items) // len(poison) + 1
    places = [number * every + every // 2 for number in range(len(poison))]
    for place, bad in zip(places, poison, strict=True):
        checks.insert(place, bad)
    started = time.monotonic()
    with closing(Grader(Verifier(workers=WORKERS, timeout_s=5.0))) as check:
        grades = check(checks)
    found = [grades[place] for place in places]
    ordinary = [grade for place, grade in enumerate(grades) if place not in set(places)]
    lost = sum(grade.outcome.score != float(item.right) for grade, item in zip(ordinary, items, strict=True))
    figures = {
        "poison": len(poison),
        "lost_labels": lost,
        "ours_mislabelled": sum(grade.outcome is Outcome.correct for grade in found),
    }
    outcomes = {o.value: sum(grade.outcome is o for grade in found) for o in Outcome}
    print(f"ours    {len(checks):,} items with {len(poison)} pathological in {time.monotonic() - started:.0f} s: "
          f"{lost} labels lost, {outcomes}", flush=True)  # fmt: skip
    return figures


def _needs_workers(item: Item) -> bool:
    answer, gold = final_answer(item.completion), reference_answer(item.reference)
    return answer is not None and answer != gold and None in (plain_number(answer), plain_number(gold))


def _ours(items: list[Item], check: Grader) -> Labels:
    before, started = cpu_s(os.getpid()), time.monotonic()  # the rival, a child too, is idle meanwhile
    scores = [grade.outcome.score for grade in check([(item.completion, item.reference) for item in items])]
    return Labels(scores, time.monotonic() - started, cpu_s(os.getpid()) - before)


def _ask(rival: Rival, items: list[Item], limit_s: float) -> Labels:
    (said,) = rival.run([items], [limit_s])
    assert not isinstance(said, WorkerFailure), said
    return said


if __name__ == "__main__":
    main()
