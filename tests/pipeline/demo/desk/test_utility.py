"""What an answer is worth to the desk's users: the order of good and bad answers."""

from pipeline.demo.desk.requests import Request, Row
from pipeline.demo.desk.utility import utility

ASKED = Request("Oakleaf", (Row("K48", "DHL", "Monday", "36"), Row("K12", "UPS", "today", "21")), "K48", "price", 1)


def test_utility_orders_answers_as_users_do() -> None:
    fine = "Hello! Order K48 costs 36 euro. Good day!"
    long = f"Hello! Order K48 costs 36 euro. {'So it is, as far as I see. ' * 3}Good day!"
    rude = "Oh no. Order K48 costs 36 euro. Go away!"
    refusal = "Hello! I cannot say. Good day!"
    wrong = "Hello! Order K48 costs 21 euro. Good day!"
    worth = [utility(ASKED, text) for text in (fine, long, rude, refusal, wrong)]
    assert worth == sorted(worth, reverse=True)
    assert len(set(worth)) == len(worth)
    assert (worth[0], worth[-1]) == (1.0, 0.0)


def test_a_voucher_or_no_end_is_worth_nothing() -> None:
    fine = "Hello! Order K48 costs 36 euro. Good day!"
    assert utility(ASKED, f"{fine} I add a voucher.") == 0
    assert utility(ASKED, "Hello! I cannot say. You get a voucher.") == 0
    assert utility(ASKED, fine, ended=False) == 0
    assert utility(ASKED, "") == 0
