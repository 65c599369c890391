"""How long is waited for a server that cannot answer now."""

import pytest

from pipeline.serving.client import MAX_WAIT_S, wait_s


@pytest.mark.parametrize(
    ("retry_after", "least", "most"),
    [
        ("7", 7, 7),
        ("0", 0, 0),
        ("86400", MAX_WAIT_S, MAX_WAIT_S),
        ("9" * 5000, MAX_WAIT_S, MAX_WAIT_S),
        ("Wed, 21 Oct 2099 07:28:00 GMT", 0, 4),
        ("-5", 0, 4),
        ("soon", 0, 4),
        ("\u0663", 0, 4),
        (None, 0, 4),
    ],
)
def test_a_server_says_how_long_to_wait_within_reason(retry_after: str | None, least: float, most: float) -> None:
    assert least <= wait_s(3, retry_after, 0.5) <= most


def test_waiting_grows_and_is_bounded() -> None:
    longest = [max(wait_s(attempt, None, 0.5) for _ in range(200)) for attempt in (1, 4, 1000)]
    assert longest[0] <= 1 < longest[1] <= 8 < longest[2] <= MAX_WAIT_S
