"""A process that ends while a test looks at it fails no test."""

import os
import subprocess
import sys
import time

from .processes import below, children, is_alive, parent


def test_a_zombie_and_a_process_that_is_gone_are_no_errors() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input() # ended"], stdin=subprocess.PIPE) as process:
        [seen] = below(os.getpid(), "-S -c", "ended")
        assert seen.pid == process.pid and is_alive(process.pid) and parent(process.pid) == os.getpid()
        process.kill()
        while is_alive(process.pid):
            time.sleep(0.01)
        assert process.pid in children(os.getpid()), "nobody has waited for it: it is a zombie"
        assert below(os.getpid(), "-S -c", "ended") == []
    assert not is_alive(process.pid) and parent(process.pid) == 0
    assert process.pid not in children(os.getpid())
