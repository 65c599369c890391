"""The list of the forgotten, and the lock that keeps publication and erasure apart."""

import threading
from pathlib import Path

from pipeline.core.storage import Store
from pipeline.traces.erased import ErasedUser, add, erased_users, exclusive_lock, shared_lock
from tests.contexts import KEYS, mark_of


def test_the_list_does_not_change_while_somebody_publishes(tmp_path: Path) -> None:
    store, added = Store(tmp_path, KEYS), threading.Event()

    def forget() -> None:
        with exclusive_lock(store):
            add(store, ErasedUser(mark=mark_of("ann"), proof="p"))
        added.set()

    with shared_lock(store) as seen, shared_lock(store) as beside:
        thread = threading.Thread(target=forget)
        thread.start()
        assert not added.wait(0.2)
        assert seen.users == beside.users == erased_users(store).users == ()
    thread.join()
    with shared_lock(store) as seen:
        assert [user.mark for user in seen.users] == [mark_of("ann")]
