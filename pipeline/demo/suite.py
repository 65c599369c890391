"""The embedded tasks' held-out suites, written as files as a user's own would be: `suites/` below the data root."""

import json
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.core import layout
from pipeline.core.storage import Store, write_atomically
from pipeline.demo.desk.conversation import FILLERS, LOOKUP, Kind, draw_turn
from pipeline.demo.desk.requests import call_json
from pipeline.demo.task import Problem, is_held_out, problems, solution_steps
from pipeline.recipe.suites import ItemsSuite

DESK_SHARES: dict[Kind, float] = {"facts": 0.4, "call": 0.2, "result": 0.2, "second": 0.2}
"""Of the desk's items, by the kind of turn that they ask."""


def ensure_suite(store: Store, section: ItemsSuite, seed: int) -> Path:
    """The file of the section's suite, written where it is missing or different."""
    path = store.path(layout.suite(section.name, seed, section.items or 0))
    text = suite_text(section, seed)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_atomically(path, text)
    return path


def suite_text(section: ItemsSuite, seed: int) -> str:
    """A JSON line for each item, the same for the same arguments."""
    return _text(section.preset or "", seed, section.items or 0)


@lru_cache(maxsize=4)
def _text(preset: str, seed: int, items: int) -> str:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in _ROWS[preset](seed, items))


def _arithmetic_rows(seed: int, items: int) -> Iterator[dict[str, Any]]:
    for number, problem in enumerate(problems(seed, "heldout", items)):
        yield {
            "id": f"arithmetic-{seed}-{number:05d}",
            "cluster": _held_out_step(problem),
            "messages": [{"role": "user", "content": problem.prompt}],
            "reference": problem.answer,
            "slice": problem.kind,
        }


def _desk_rows(seed: int, items: int) -> Iterator[dict[str, Any]]:
    """Turns of each kind in the users' proportions; the right answer names the fact or is the call that looks it up.
    The cluster is the fact, or the question of a call. Fillers and, with a tool, the system prompt are left out:
    traffic repeats them, and the item would count as contaminated."""
    rng = random.Random(f"desk/{seed}")
    asked: set[str] = set()
    while len(asked) < items:
        turn = draw_turn(rng, "heldout", rng.choices(list(DESK_SHARES), list(DESK_SHARES.values()))[0])
        request, text = turn.request, json.dumps(turn.messages)
        if text in asked or any(filler in text for filler in FILLERS):
            continue
        asked.add(text)
        calls = turn.kind == "call"
        yield {
            "id": f"desk-{seed}-{len(asked) - 1:05d}",
            "cluster": "/".join((request.order, request.attribute, LOOKUP) if calls else request.fact),
            "messages": [m for m in turn.conversation if not (turn.tool and m["role"] == "system")],
            "reference": call_json(request.order) if calls else request.fact.value,
            "slice": request.attribute if turn.kind == "facts" else turn.kind,
            "check": "calls" if calls else "contains",
        }


def _held_out_step(problem: Problem) -> str:
    """The first held-out elementary step, such as `27+35`; about 2% of the items need a second one."""
    steps = solution_steps(problem.kind, problem.operands)
    left, symbol, right, _ = next(step for step in steps if is_held_out(*step[:3]))
    first, second = sorted((left, right)) if symbol == "+" else (left, right)
    return f"{first}{symbol}{second}"


_ROWS = {"arithmetic": _arithmetic_rows, "desk": _desk_rows}
