import socket

import pytest

from jobs import ui


def test_a_port_in_use_is_named_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ui, "PORTS", {"DAGSTER": port, "MLFLOW": port})
        assert ui.main() == 1
    output = capsys.readouterr().out
    assert f"Port {port} is in use" in output
    assert f"DAGSTER_PORT={port + 1} make ui" in output
