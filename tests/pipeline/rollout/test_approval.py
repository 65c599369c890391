"""Who may approve a candidate, and who proposed it."""

import pytest

from pipeline.rollout.approval import approval_refusal, proposer

APPROVERS = ("ada@example.org", "bob")


@pytest.mark.parametrize(
    ("by", "proposed_by", "why"),
    [
        ("bob", "ada", ""),
        ("ada@example.org", "schedule nightly", ""),
        ("ada", "bob", "ada is not among rollout.approvers (ada@example.org, bob)"),
        ("Bob", "ada", "is not among"),
        ("", "ada", "nobody is not among"),
        ("bob", "", "not on record"),
        ("bob", "BOB", "bob proposed this candidate as BOB: somebody else"),
        ("bob", "bob@example.org", "bob proposed"),
        ("ada@example.org", "ada", "proposed this candidate as ada"),
        ("ada@example.org", "ada@elsewhere.example.org", "proposed"),
    ],
)
def test_one_of_the_approvers_who_did_not_propose_it_may(by: str, proposed_by: str, why: str) -> None:
    refusal = approval_refusal(by, APPROVERS, proposed_by)
    assert why in refusal if why else refusal == ""


@pytest.mark.parametrize(
    ("tags", "who"),
    [
        ({}, "ada"),
        ({"launched_by": "bob"}, "bob"),
        ({"launched_by": "daemon", "dagster/schedule_name": "nightly"}, "schedule nightly"),
        ({"launched_by": "daemon", "dagster/sensor_name": "champion_changed"}, "sensor champion_changed"),
    ],
)
def test_the_proposer_is_who_launched_the_run(tags: dict[str, str], who: str) -> None:
    assert proposer(tags, "ada") == who
