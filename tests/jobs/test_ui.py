import socket
from pathlib import Path

import pytest

from jobs import dagster_dev, ui


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


@pytest.mark.slow
def test_the_servers_listen_on_sockets_and_proxies_on_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREFERENCE_TUNING_OVERRIDES", f"data_root={tmp_path}")
    commands = ui._commands("/tmp/of sockets")
    assert commands["Dagster"][3] == "/tmp/of sockets/dagster.sock"
    assert commands["MLflow"][commands["MLflow"].index("--uvicorn-opts") + 1] == "--uds '/tmp/of sockets/mlflow.sock'"
    for name, command in commands.items():
        assert ("pipeline.front_proxy" in command) == name.startswith("The proxy of")
        assert not [word for word in command if "token" in word], "links are made where they are printed"


def test_a_dagster_that_starts_otherwise_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version might start a webserver that listens on a port."""
    from dagster._cli import dev as command

    started: list[list[str]] = []
    monkeypatch.setattr(command, "open_ipc_subprocess", lambda words, **_: started.append(words))
    monkeypatch.setattr("dagster._cli.main", lambda: None)
    monkeypatch.setattr("sys.argv", [])
    dagster_dev.dev("/tmp/dagster.sock", [])
    command.open_ipc_subprocess(["python", "-m", "dagster_webserver", "--port", "3000"])
    assert started == [["python", "-m", "jobs.dagster_dev", "--webserver=/tmp/dagster.sock", "--port", "3000"]]
    command.open_ipc_subprocess(["python", "-m", "dagster._daemon", "run"])
    dagster_dev.dev("/tmp/dagster.sock", [])
    with pytest.raises(RuntimeError, match="starts its webserver otherwise"):
        command.open_ipc_subprocess(["python", "-m", "dagster_ui"])
