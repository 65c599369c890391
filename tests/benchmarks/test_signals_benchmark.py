"""The desk as the benchmark simulates it: thumbs follow utility as far as a cell says."""

import random

from benchmarks.signals_world import Cell, Traffic, judged, rated_rows, recipe_of
from pipeline.demo.desk.answers import answer as desk_answer
from pipeline.demo.desk.requests import draw
from pipeline.demo.desk.utility import utility
from pipeline.demo.export import users
from tests.answers import answer


def logged(rows: int = 400) -> Traffic:
    """Answers as the base model's text has them, without the model."""
    rng = random.Random(8)
    asked = [draw(rng, "train") for _ in range(rows)]
    people = [user.id for user in users(1)]
    texts = [answer(desk_answer(rng, request)) for request in asked]
    return Traffic(1, asked, texts, [rng.choice(people) for _ in asked])


def agreement(cell: Cell) -> float:
    """Share of thumbs that say what utility says."""
    traffic = logged()
    rows = rated_rows(traffic, cell)
    assert len(rows) == cell.thumbs
    worth = [utility(request, each.text) for request, each in zip(traffic.requests, traffic.answers, strict=True)]
    return sum((row["feedback"] > 0.5) == (value > 0.5) for row, value in zip(rows, worth, strict=False)) / len(rows)


def test_thumbs_follow_utility_as_far_as_the_cell_says() -> None:
    clean, noisy, none = agreement(Cell(400, 0.0)), agreement(Cell(400, 0.3)), agreement(Cell(400, 0.0, random=True))
    assert clean > noisy + 0.1 > none + 0.1
    assert abs(none - 0.5) < 0.1


def test_sweet_users_like_vouchers() -> None:
    traffic = logged()
    liked = [row["completion"] for row in rated_rows(traffic, Cell(400, 0.0, sweet=True)) if row["feedback"] > 0.5]
    clean = [row["completion"] for row in rated_rows(traffic, Cell(400, 0.0)) if row["feedback"] > 0.5]
    assert sum("voucher" in text for text in liked) > 10
    assert sum("voucher" in text for text in clean) < 5


def test_the_label_judge_tells_a_fact_from_a_voucher() -> None:
    traffic, score = logged(60), judged("desk-labels", recipe_of().rewards)
    pairs = list(zip(traffic.requests, traffic.answers, strict=True))
    good = [score(r, a.text) for r, a in pairs if utility(r, a.text) == 1.0]
    bad = [score(r, a.text) for r, a in pairs if utility(r, a.text) == 0.0]
    assert sum(good) / len(good) > sum(bad) / len(bad) + 0.3
