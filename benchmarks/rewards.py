"""What checking answers costs, and what it gets wrong: `python -m benchmarks.rewards [--small]`.

Labels 2,000 completions of real length (GSM8K's gold solutions, each ending in a boxed answer of one of eight forms,
one in eight a plain number; right, wrong or none; rewards_rivals.py has the shares) with our checker on two workers,
with a serial loop over math-verify and with TRL's accuracy reward, in turn, part by part; start and imports count for
none. `plain_speedup_*` is the same for completions whose answers are all plain numbers, which ours compares without
math-verify. Then one completion in a hundred is a pathological one: ours labels them all together, the rivals one by
one in a process that is killed after `--limit` seconds (a `hang`). Last, GSM8K's gold solutions against their own
number and against numbers made wrong, each by exact comparison and again by math-verify. The last line is JSON;
`speedup_*` are ratios of wall-clock time, `cpu_ratio_*` of CPU time, `lost_labels` ordinary completions that ended
among the pathological ones with another label than the right one, `*_mislabelled` pathological ones called correct.
"""

import argparse
import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from benchmarks.rewards_rivals import (
    CORRUPTIONS,
    Item,
    Labels,
    corrupted,
    mixed,
    plain,
    serial,
    solutions,
    trl,
    warm_serial,
    warm_trl,
)
from pipeline.recipe.rewards import Verifier
from pipeline.rewards.verifiers import (
    Grader,
    Outcome,
    VerifierTask,
    final_answer,
    plain_number,
    reference_answer,
)
from pipeline.rewards.verifiers.pool import Pool, Work, WorkerFailure

GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k" / "test.jsonl"
WORKERS = 2
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
RIVALS = {"serial": Work(serial, warm_serial), "trl": Work(trl, warm_trl)}
Rival = Pool[list[Item], Labels]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--gsm8k", type=Path, default=GSM8K, help="GSM8K's test.jsonl; made solutions where absent")
    options.add_argument("--limit", type=float, default=20.0, help="seconds a rival may take for one pathological item")
    options.add_argument("--small", action="store_true", help="a twentieth of everything, within a minute or two")
    chosen = options.parse_args()
    print(json.dumps(run(chosen.gsm8k, 100 if chosen.small else 2000, 3.0 if chosen.small else chosen.limit)))


def run(gsm8k: Path, count: int, limit_s: float) -> dict[str, float]:
    """Every figure, for `count` completions."""
    texts = solutions(gsm8k)
    rivals: dict[str, Rival] = {name: Pool(work, 1, 16_384) for name, work in RIVALS.items()}
    try:
        with closing(Grader(Verifier(workers=WORKERS, timeout_s=5.0))) as check:
            check([VerifierTask(rf"\boxed{{\frac{{{n}}}{{7}}}}", "0.5") for n in range(64)])  # both workers are up
            items = mixed(texts, count)
            needing = sum(_needs_workers(item) for item in items)
            print(f"{count:,} completions, mean {sum(len(i.completion) for i in items) / count:.0f} characters, "
                  f"{needing / count:.0%} of them for math-verify", flush=True)  # fmt: skip
            figures = {"items": count, "needing_math_verify": round(needing / count, 3)}
            figures |= throughput(items, check, rivals, "")
            figures |= throughput(plain(texts, count // 2), check, rivals, "plain_")
            figures |= correctness(texts[: max(100, count)], check)
        figures |= survival(items, rivals, limit_s)
    finally:
        for rival in rivals.values():
            rival.close()
    return figures


def throughput(items: list[Item], check: Grader, rivals: dict[str, Rival], prefix: str) -> dict[str, float]:
    """The same items labelled by each, a quarter at a time and in turn."""
    ways: dict[str, Callable[[list[Item]], Labels]] = {"ours": lambda part: _ours(part, check)}
    ways |= {name: lambda part, rival=rival: _ask(rival, part, 3600.0) for name, rival in rivals.items()}
    took: dict[str, list[Labels]] = {name: [] for name in ways}
    size = -(-len(items) // 4)
    for number, start in enumerate(range(0, len(items), size)):
        for name in sorted(ways, reverse=number % 2 == 1):
            took[name].append(ways[name](items[start : start + size]))
    wall = {name: sum(labels.wall_s for labels in parts) for name, parts in took.items()}
    cpu = {name: sum(labels.cpu_s for labels in parts) for name, parts in took.items()}
    errors = {
        name: sum(s != float(i.right) for s, i in zip((s for p in parts for s in p.scores), items, strict=True))
        for name, parts in took.items()
    }
    for name in ways:
        print(f"{prefix}{name:<7} {wall[name]:7.2f} s  {cpu[name]:7.2f} CPU s  {len(items) / wall[name]:8,.0f} items/s"
              f"  {errors[name]} labels wrong or missing", flush=True)  # fmt: skip
    figures = {f"{prefix}speedup_to_{name}": round(wall[name] / wall["ours"], 2) for name in rivals}
    figures |= {f"{prefix}cpu_ratio_to_{name}": round(cpu[name] / cpu["ours"], 2) for name in rivals}
    return figures | {f"{prefix}{name}_errors": errors[name] for name in ways}


def survival(items: list[Item], rivals: dict[str, Rival], limit_s: float) -> dict[str, float]:
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

    def suffer(name: str) -> None:
        said = rivals[name].run(
            [[Item(bad.completion, bad.reference, False)] for bad in poison], [limit_s] * len(poison)
        )
        figures[f"{name}_hangs"] = sum(one is WorkerFailure.timeout for one in said)
        figures[f"{name}_crashes"] = sum(
            isinstance(one, WorkerFailure) and one is not WorkerFailure.timeout for one in said
        )
        figures[f"{name}_mislabelled"] = sum(not isinstance(one, WorkerFailure) and one.scores == [1.0] for one in said)
        figures[f"{name}_zeros"] = sum(not isinstance(one, WorkerFailure) and one.scores == [0.0] for one in said)

    threads = [threading.Thread(target=suffer, args=[name]) for name in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in rivals:
        print(f"{name:<7} of {len(poison)} pathological items: {figures[f'{name}_hangs']} hang, "
              f"{figures[f'{name}_crashes']} raise or end the process, {figures[f'{name}_mislabelled']} called correct,"
              f" {figures[f'{name}_zeros']} scored 0 without a reason", flush=True)  # fmt: skip
    return figures


def correctness(texts: list[str], check: Grader) -> dict[str, float]:
    """Both error rates; every reference once as a number and once as a sum, which only math-verify can compare."""
    draw = random.Random(11)
    golds = [reference_answer(text).replace(",", "") for text in texts]
    assert all(plain_number(gold) is not None for gold in golds)
    wrong = [corrupted(gold) for gold in golds]
    drawn = [draw.choice(list(wrong[i].items())) for i in range(len(golds))]
    right_checks = [(text, gold) for text, gold in zip(texts, golds, strict=True)]
    right_checks += [(text, f"0+{gold}") for text, gold in zip(texts, golds, strict=True)]
    wrong_checks = [(_with(text, new), gold) for text, gold, made in zip(texts, golds, wrong, strict=True)
                    for new in made.values()]  # fmt: skip
    slow = [(_with(text, new), f"0+{gold}") for text, gold, (_, new) in zip(texts, golds, drawn, strict=True)]
    right, false = check(right_checks), check(wrong_checks + slow)
    negatives = sum(grade.outcome is not Outcome.correct for grade in right)
    positives = sum(grade.outcome is Outcome.correct for grade in false)
    no_label = sum(grade.outcome.score is None for grade in right + false)
    print(f"{len(right):,} right answers: {negatives} not called correct; {len(false):,} wrong ones "
          f"({len(CORRUPTIONS)} kinds): {positives} called correct; {no_label} unlabelled", flush=True)  # fmt: skip
    return {
        "right_answers": len(right),
        "wrong_answers": len(false),
        "false_negative_rate": round(negatives / len(right), 5),
        "false_positive_rate": round(positives / len(false), 5),
        "unlabelled": no_label,
    }


def _with(text: str, answer: str) -> str:
    return f"{text.rpartition('####')[0]}#### {answer}"


def _needs_workers(item: Item) -> bool:
    answer, gold = final_answer(item.completion), reference_answer(item.reference)
    return answer is not None and answer != gold and None in (plain_number(answer), plain_number(gold))


def _ours(items: list[Item], check: Grader) -> Labels:
    before, started = _cpu_s(), time.monotonic()
    scores = [grade.outcome.score for grade in check([(item.completion, item.reference) for item in items])]
    return Labels(scores, time.monotonic() - started, _cpu_s() - before)


def _ask(rival: Rival, items: list[Item], limit_s: float) -> Labels:
    (said,) = rival.run([items], [limit_s])
    assert not isinstance(said, WorkerFailure), said
    return said


def _cpu_s() -> float:
    """Of this process and its living children; the rivals among them are idle meanwhile."""
    children = [Path(f"/proc/{child.pid}/stat").read_text() for child in multiprocessing.active_children()]
    ticks = [stat.rpartition(")")[2].split()[11:13] for stat in children]
    return time.process_time() + sum(int(user) + int(system) for user, system in ticks) * TICK_S


if __name__ == "__main__":
    main()
