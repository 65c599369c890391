"""Attempts with numbers: the highest one writes."""

import base64
import json
import threading
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints import Checkpointer, FencingToken, only_writer
from pipeline.training.checkpoints.manifest import Origin
from pipeline.training.checkpoints.starts import pod_start
from pipeline.training.checkpoints.writer import check, holder, parse, take
from pipeline.training.result import InvalidPlan

from .conftest import trained


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("", None),
        ("3", FencingToken(3)),
        ("3.", FencingToken(3)),
        ("2.11", FencingToken(2, 11)),
        ("2.11.1700000000.a-b.c", FencingToken(2, 11, 1_700_000_000, "a-b.c")),
    ],
)
def test_a_turn_is_attempt_and_restart(text: str, turn: FencingToken | None) -> None:
    assert parse(text) == turn
    assert turn is None or parse(str(turn)) == turn


@pytest.mark.parametrize("text", ["1.2.3.", "1.2..uid", "x", "1.2.3", "-1", "1.x", " 1", "$(RESTART)"])
def test_what_is_no_turn_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no turn: write ATTEMPT\.RESTART"):
        parse(text)


def test_later_token_takes_the_folder_and_keeps_it(tmp_path: Path) -> None:
    take(tmp_path, FencingToken(1))
    take(tmp_path, FencingToken(1, 1))
    take(tmp_path, FencingToken(1, 1))  # the same one, started again
    take(tmp_path, FencingToken(2))
    for replaced in (FencingToken(1), FencingToken(1, 1), FencingToken(1, 99)):
        with pytest.raises(InvalidPlan, match=r"Attempt 2\.0 has taken"):
            take(tmp_path, replaced)
        with pytest.raises(InvalidPlan, match=r"Attempt 2\.0 has taken"):
            check(tmp_path, replaced)
    check(tmp_path, FencingToken(2))


def test_of_two_starts_with_one_number_the_later_writes(tmp_path: Path) -> None:
    """A queue starts a gang again under the same attempt and restart."""
    first, second = FencingToken(1, 2, 1_700_000_000, "a"), FencingToken(1, 2, 1_700_000_030, "b")
    take(tmp_path, first)
    take(tmp_path, first)  # its process, started again in the pod
    check(tmp_path, first)
    take(tmp_path, second)
    for act in (take, check):
        with pytest.raises(InvalidPlan, match=r"pod b, started at 1700000030.*pod a, started at 1700000000"):
            act(tmp_path, first)
    check(tmp_path, second)
    take(tmp_path, FencingToken(1, 3, 1_700_000_010, "c"))  # a restart decides before any clock


def test_of_two_starts_in_one_second_one_writes(tmp_path: Path) -> None:
    first, second = FencingToken(1, 0, 1_700_000_000, "a"), FencingToken(1, 0, 1_700_000_000, "b")
    take(tmp_path, first)
    take(tmp_path, second)
    check(tmp_path, second)
    with pytest.raises(InvalidPlan, match="writes nothing more"):
        check(tmp_path, first)


def test_peers_of_the_writer_on_other_nodes_go_on(tmp_path: Path) -> None:
    """Each pod of a gang has a start of its own, and only one of them writes."""
    writer, peer = FencingToken(1, 2, 1_700_000_003, "a"), FencingToken(1, 2, 1_700_000_000, "b")
    take(tmp_path, writer)
    check(tmp_path, peer.of_any_pod())
    take(tmp_path, FencingToken(1, 3, 1_700_000_040, "c"))
    with pytest.raises(InvalidPlan, match=r"Attempt 1\.3 has taken"):
        check(tmp_path, peer.of_any_pod())


def test_a_turn_on_record_from_before_pods_is_read(tmp_path: Path) -> None:
    take(tmp_path / "new", FencingToken(2, 1))
    (tmp_path / "new" / "turn.json").write_text('{"attempt": 2, "restart": 1}')
    assert holder(tmp_path / "new") == FencingToken(2, 1)


def token_file(path: Path, claims: object) -> Path:
    """As the kubelet leaves it: three parts in base64 without padding."""
    part = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    path.write_text(f"e30.{part}.c2lnbmVk")
    return path


def test_a_pods_token_tells_its_start(tmp_path: Path) -> None:
    for uid in ("abcdefghijklmno"[:length] for length in range(1, 16)):
        claims = {"iat": 1_700_000_000, "aud": ["x"], "kubernetes.io": {"pod": {"name": "p", "uid": uid}}}
        assert pod_start(token_file(tmp_path / "token", claims)) == (1_700_000_000, uid)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        [],
        {"iat": "x", "kubernetes.io": {"pod": {"uid": "a"}}},
        {"iat": 1, "kubernetes.io": {"pod": {"uid": ""}}},
        {"iat": 1, "kubernetes.io": {"pod": {"uid": 5}}},
        {"iat": 1},
    ],
)
def test_a_token_that_tells_nothing_is_no_refusal(tmp_path: Path, claims: object) -> None:
    """Of the plan: another pod may have a better one."""
    with pytest.raises(RuntimeError, match="does not tell when this pod was started"):
        pod_start(token_file(tmp_path / "token", claims))
    with pytest.raises(RuntimeError, match="FileNotFoundError"):
        pod_start(tmp_path / "missing")


def test_of_turns_that_race_the_highest_has_the_directory(tmp_path: Path) -> None:
    outcomes: dict[int, str] = {}

    def run(number: int) -> None:
        try:
            take(tmp_path, FencingToken(number))
            outcomes[number] = "took"
        except InvalidPlan:
            outcomes[number] = "gave way"

    threads = [threading.Thread(target=run, args=(n,)) for n in (3, 1, 4, 2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes[5] == "took"
    check(tmp_path, FencingToken(5))
    with pytest.raises(InvalidPlan):
        check(tmp_path, FencingToken(4))


def test_an_attempt_that_was_replaced_commits_no_checkpoint(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    with only_writer(tmp_path, FencingToken(1)):
        keeper = Checkpointer(root, Origin("p", 1), 1, Checkpoints(), print, lambda: check(tmp_path, FencingToken(1)))
        assert keeper.commit(trained(tmp_path / "a", 5), 5, None).is_dir()
        take(tmp_path, FencingToken(2))  # by a launcher elsewhere, which believes this one dead
        with pytest.raises(InvalidPlan, match="writes nothing more"):
            keeper.commit(trained(tmp_path / "b", 10), 10, None)
    assert [folder.name for folder in sorted(root.glob("step-*"))] == ["step-000005"]


def test_an_attempt_replaced_within_a_commit_publishes_nothing(tmp_path: Path) -> None:
    root, turns = tmp_path / "checkpoints", iter([FencingToken(1), FencingToken(2)])

    def fence() -> None:
        take(tmp_path, next(turns))
        check(tmp_path, FencingToken(1))

    keeper = Checkpointer(root, Origin("p", 1), 1, Checkpoints(), print, fence)
    with pytest.raises(InvalidPlan, match="writes nothing more"):
        keeper.commit(trained(tmp_path / "a", 5), 5, None)
    assert list(root.glob("step-*")) == []


def test_a_replaced_attempt_drops_no_checkpoint_either(tmp_path: Path) -> None:
    """The step is there already: nothing is published, and retention would follow."""
    root, first = tmp_path / "checkpoints", FencingToken(1)
    keeper = Checkpointer(root, Origin("p", 1), 1, Checkpoints(), print, lambda: check(tmp_path, first))
    keeper.commit(trained(tmp_path / "a", 5), 5, None)
    take(tmp_path, FencingToken(2))
    with pytest.raises(InvalidPlan, match="writes nothing more"):
        keeper.commit(trained(tmp_path / "b", 5), 5, None)
    assert (tmp_path / "b").is_dir()


def test_a_file_that_is_none_of_ours_is_said(tmp_path: Path) -> None:
    (tmp_path / "turn.json").write_text("{")
    with pytest.raises(InvalidPlan, match="Remove it when nothing trains there"):
        take(tmp_path, FencingToken(1))
