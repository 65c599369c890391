import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.training.checkpoints import MANIFEST, commit, find_flaw, newest_complete, only_writer, published


def save(root: Path, step: int, plan: str = "plan") -> Path:
    staging = root / "staging" / f"checkpoint-{step}"
    staging.mkdir(parents=True)
    (staging / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 4)
    (staging / "optimizer.pt").write_bytes(b"state" * step)
    return commit(staging, root / "checkpoints", plan, step)


def test_commit_publishes_whole_and_keeps_two(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        save(tmp_path, step)
    assert [p.name for p in published(tmp_path / "checkpoints")] == ["step-000015", "step-000010"]
    assert find_flaw(tmp_path / "checkpoints" / "step-000015", "plan") is None


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "optimizer.pt", MANIFEST])
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_a_damaged_checkpoint_is_passed_over_by_name(tmp_path: Path, name: str, harm: str) -> None:
    save(tmp_path, 5)
    victim = save(tmp_path, 10) / name
    if harm == "remove":
        victim.unlink()
    else:
        data = bytearray(victim.read_bytes())
        if harm == "flip":
            data[len(data) // 2] ^= 0x80
        victim.write_bytes(bytes(data) if harm == "flip" else bytes(data[: len(data) // 2]))
    said: list[str] = []
    found = newest_complete(tmp_path / "checkpoints", "plan", said.append)
    assert found is not None
    assert found.name == "step-000005"
    assert len(said) == 1
    assert "step-000010 is passed over" in said[0]
    assert name in said[0]


def test_another_plans_checkpoint_is_not_resumed(tmp_path: Path) -> None:
    save(tmp_path, 5, plan="other")
    said: list[str] = []
    assert newest_complete(tmp_path / "checkpoints", "plan", said.append) is None
    assert "another plan" in said[0]


def test_a_damaged_checkpoint_is_replaced_when_its_step_comes_again(tmp_path: Path) -> None:
    (save(tmp_path, 5) / "optimizer.pt").write_bytes(b"")
    assert find_flaw(save(tmp_path, 5), "plan") is None


def test_one_writer_and_its_lock_dies_with_it(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path; from pipeline.training.checkpoints import only_writer\n"
        f"with only_writer(Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="Another process is training"), only_writer(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with only_writer(tmp_path):
        pass
