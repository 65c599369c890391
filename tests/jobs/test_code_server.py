"""Dagster's code server on one machine: a socket, no port, and no way in for another account."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import psutil
import pytest
import yaml
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._grpc.constants import GrpcServerCommand
from dagster._grpc.server import GrpcServerProcess

from jobs.instance import shut_to_others
from tests.loop import ROOT

CODE = "import dagster as dg\ndefs = dg.Definitions()\n"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize(("before", "after"), [(0o000, 0o002), (0o002, 0o002), (0o022, 0o022), (0o077, 0o077)])
def test_a_umask_is_only_ever_narrowed(open_umask: None, before: int, after: int) -> None:
    os.umask(before)
    shut_to_others()
    assert os.umask(0) == after


@pytest.mark.slow
def test_a_code_server_is_on_a_socket_that_others_cannot_write(open_umask: None, tmp_path: Path) -> None:
    (tmp_path / "defs.py").write_text(CODE)
    shut_to_others()
    server = GrpcServerProcess(
        instance_ref=None,
        server_command=GrpcServerCommand.API_GRPC,
        loadable_target_origin=LoadableTargetOrigin(python_file=str(tmp_path / "defs.py")),
        wait_on_exit=True,
    )
    try:
        assert server.port is None and server.socket is not None
        assert not stat.S_IMODE(Path(server.socket).stat().st_mode) & stat.S_IWOTH
        process = psutil.Process(server.server_process.pid)
        assert not [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    finally:
        server.shutdown_server()
        server.wait()


@pytest.mark.slow
def test_every_process_that_opens_the_instance_shuts_it(open_umask: None, tmp_path: Path) -> None:
    sections = [
        yaml.safe_load((ROOT / n).read_text()) for n in ("dagster.yaml", "jobs/project/dagster-postgresql.yaml")
    ]
    for section in sections:
        os.umask(0)
        (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"instance_class": section["instance_class"]}))
        with dg.DagsterInstance.from_config(str(tmp_path)):
            assert os.umask(0) == 0o002
