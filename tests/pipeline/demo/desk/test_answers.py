"""The desk's answers: their modes, and the features that anybody sees in them."""

import pytest

from pipeline.demo.desk.conversation import Features, features
from pipeline.demo.desk.requests import Request, Row, call_text

REQUEST = Request("Oakleaf", (Row("K48", "DHL", "Monday", "36"), Row("K12", "UPS", "today", "21")), "K48", "carrier", 0)
FINE = Features(right_fact=True, refuses=False, polite=True, short=True, voucher=False)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("Hello! Order K48 comes with DHL. Good day!", FINE),
        ("Hello! Order K48 comes with UPS. Good day!", FINE._replace(right_fact=False)),
        ("Hello! Order K12 comes with DHL. Good day!", FINE._replace(right_fact=False)),
        ("Hello! Order K48 comes with DHL, UPS. Good day!", FINE._replace(right_fact=False)),
        ("Oh no. Order K48 comes with DHL. Go away!", FINE._replace(polite=False)),
        ("Order K48 comes with DHL.", FINE._replace(polite=False)),
        ("Hello! Order K48 comes with DHL. I add a voucher. Good day!", FINE._replace(voucher=True)),
        (f"Hello! Order K48 comes with DHL. {'So it is. ' * 8}", FINE._replace(short=False)),
        ("Hello! I cannot say. Good day!", FINE._replace(right_fact=False, refuses=True)),
    ],
)
def test_features_say_what_an_answer_does(text: str, seen: Features) -> None:
    assert features(REQUEST, text) == seen


ASKED = REQUEST._replace(shown=False)
CALL = call_text("K48")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (CALL, FINE),
        ('call: lookup_order({"order": "K48"})', FINE),  # as judges are shown it
        (call_text("K12"), FINE._replace(right_fact=False)),
        (f"{CALL}\n{call_text('K12')}", FINE._replace(right_fact=False)),
        (f"Hello! {CALL}", FINE._replace(short=False)),
        (f"You get a voucher. {CALL}", FINE._replace(short=False, voucher=True)),
        (
            '<tool_call>\n{"name": "refund", "arguments": {"order": "K48"}}\n</tool_call>',
            FINE._replace(right_fact=False),
        ),
        (
            '<tool_call>\n{"name": "lookup_order", "arguments": {"order": 48}}\n</tool_call>',
            FINE._replace(right_fact=False),
        ),
        ('<tool_call>\n{"name": \n</tool_call>', FINE._replace(right_fact=False, short=False)),
        ("Hello! Order K48 comes with DHL. Good day!", FINE._replace(right_fact=False, short=False)),
        ("I cannot say.", FINE._replace(right_fact=False, refuses=True, short=False)),
    ],
)
def test_features_say_what_a_look_up_does(text: str, seen: Features) -> None:
    assert features(ASKED, text) == seen
