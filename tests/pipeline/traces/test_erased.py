"""The list of the forgotten, and the lock that keeps publication and erasure apart."""

import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.traces.erased import ErasedUser, add, erased_users, exclusive_lock, shared_lock
from tests.contexts import KEYS, mark_of

EARLY, LATE = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("entries", "stands"),
    [([None, LATE], None), ([LATE, None], None), ([LATE, EARLY], EARLY), ([EARLY, LATE], EARLY), ([LATE, LATE], LATE)],
)
def test_erased_entry_that_forgets_more_stands(
    entries: list[datetime | None], stands: datetime | None, tmp_path: Path
) -> None:
    store = Store(tmp_path, KEYS)
    with exclusive_lock(store):
        add(store, ErasedUser(mark=mark_of("other"), since=None, proof="p"))
        for since in entries:
            add(store, ErasedUser(mark=mark_of("ann"), since=since, proof=str(since)))
    by_name = {user.mark: user for user in erased_users(store).users}
    assert (by_name[mark_of("ann")].since, by_name[mark_of("ann")].proof) == (stands, str(stands))
    assert len(by_name) == 2


def test_the_list_does_not_change_while_somebody_publishes(tmp_path: Path) -> None:
    store, added = Store(tmp_path, KEYS), threading.Event()

    def forget() -> None:
        with exclusive_lock(store):
            add(store, ErasedUser(mark=mark_of("ann"), since=None, proof="p"))
        added.set()

    with shared_lock(store) as seen, shared_lock(store) as beside:
        thread = threading.Thread(target=forget)
        thread.start()
        assert not added.wait(0.2)
        assert seen.users == beside.users == erased_users(store).users == ()
    thread.join()
    with shared_lock(store) as seen:
        assert [user.mark for user in seen.users] == [mark_of("ann")]
