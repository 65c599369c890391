"""Exports of bases that transformers 4 wrote load there: tokenizer, model and what it computes."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.models.export import export_policy, load_model, log_probabilities
from tests.pipeline.models.test_export import ADAPTED, adapted

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.transformers4]

PYTHON = Path(__file__).parents[3] / ".venv-transformers4" / "bin" / "python"
QUESTION = [{"role": "user", "content": "Add 3 and 4."}]
PROGRAM = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

def seen(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(json.loads(sys.argv[3]), add_generation_prompt=True)
    return type(tokenizer).__name__, tokenizer.all_special_tokens, ids

base, folder = sys.argv[1:3]
assert seen(base) == seen(folder)
ids = torch.tensor(seen(folder)[2])
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    logits = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
print(json.dumps([ids.tolist(), logits.gather(-1, ids[1:, None]).flatten().tolist()]))
"""


def as_written_by_4(base: Path, to: Path) -> Path:
    """A copy with the names that transformers 4 has for rotary embeddings; 5 reads them too."""
    path = Path(shutil.copytree(base, to)) / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters", None) or {}
    if "full_attention" in rope:
        config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    path.write_text(json.dumps({**config, **({"rope_theta": rope["rope_theta"]} if rope else {})}))
    return to


@pytest.mark.parametrize("name", ["llama3", "qwen2", "gemma3t", "mistral", "phi3", "gpt2"])
def test_transformers_4_computes_the_same(name: str, family: Callable[[str], Path], tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.skip(f"no transformers 4 at {PYTHON} (make test-transformers4)")
    base, to = as_written_by_4(family(name), tmp_path / "base"), tmp_path / "model"
    to.mkdir()

    def change(model: Any) -> Any:
        return adapted(model, ADAPTED.get(name, "q_proj"))

    export_policy(base, change, [[5, 6, 7]], to)
    command = [str(PYTHON), "-c", PROGRAM, str(base), str(to), json.dumps(QUESTION)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr[-2000:]
    ids, found = json.loads(ran.stdout.splitlines()[-1])
    assert found == pytest.approx(log_probabilities(load_model(to), [ids]).tolist(), abs=1e-3)
