"""Base models of other families through the loop: `python -m benchmarks.models [--small] [--only NAME ...] [--write]`.
Each is refused before labels, or trained by the four methods, exported, evaluated, registered and loaded; the benchmark
judges itself whether the export is the base with other weights. `--write`: the matrix into docs/models.md. The last
line is JSON."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from benchmarks.base_models import build
from benchmarks.base_tokenizers import answer
from benchmarks.kills import ENVIRONMENT
from benchmarks.model_checks import file_faults, merge, prompt_faults, tensor_faults, token_faults
from benchmarks.model_loop import CHAT, ModelLoop, ModelOutcome, conversations
from benchmarks.parts import options
from pipeline.core.storage import model_ref
from pipeline.recipe.methods import METHODS, MethodName

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "models.md"
MARKS = ("<!-- the matrix, by python -m benchmarks.models --write -->", "<!-- its end -->")
TRANSFORMERS4 = ROOT / ".venv-transformers4" / "bin" / "python"
OUTCOME = TypeAdapter(ModelOutcome)
HABITS = {
    "llama3": "Llama 3: no pad token, three end tokens, shards",
    "llama3p": "Llama 3 with a pad token of its own",
    "llama31d": "Llama 3.1: the template writes today's date",
    "r1llama": "Llama 3 whose byte-level tokenizer says LlamaTokenizerFast",
    "qwen2": "Qwen2: tied, the template adds a system message",
    "qwen2f16": "Qwen2 in float16",
    "qwen3": "Qwen3: reasoning, the last turn rendered otherwise",
    "thinkopen": "Qwen3 whose template opens a thought",
    "rowsmore": "Qwen3 with more embedding rows than tokens",
    "rowsfewer": "Qwen2 with a pad token that has no embedding row",
    "rowsfewer2": "Qwen2 with tool tokens that have no embedding row",
    "noend": "Qwen2 whose template ends an answer with no token",
    "noeosgen": "Qwen2 with end tokens in config.json alone",
    "qwen3moe": "Qwen3-MoE",
    "qwen35c": "Qwen3.5 composite: a vision tower, linear attention",
    "gpt2": "GPT-2: n_positions, Conv1D",
    "smollm": "SmolLM: Llama with GPT-2's tokenizer",
    "neoxbase": "GPT-NeoX without a template and a pad token",
    "neoxchat": "GPT-NeoX in float16",
    "gemma2": "Gemma 2: the template refuses system messages",
    "gemma3t": "Gemma 3, text alone",
    "gemma3c": "Gemma 3 composite: a vision tower, processor files",
    "mistral": "Mistral: no pad token, refuses system messages",
    "mistralp": "Mistral that pads with its end token",
    "phi3": "Phi-3: the template drops system messages",
}
LOADS = """
import json, sys
from transformers import AutoModelForCausalLM, AutoTokenizer
def loads(folder):
    try:
        AutoModelForCausalLM.from_pretrained(folder)
        return AutoTokenizer.from_pretrained(folder)("Add 3 and 4.")["input_ids"]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
print(json.dumps([loads(folder) for folder in sys.argv[1:]]))
"""


def tried(root: Path, name: str, methods: Sequence[MethodName]) -> ModelOutcome:
    """One model through the loop, in a process of its own; what an earlier run below `root` trained stands."""
    folder, kept = root / "bases" / name, root / "outcomes" / name
    if not kept.is_file():
        trained = ModelLoop(root).run(name, folder if folder.is_dir() else build(name, folder), methods)
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(OUTCOME.dump_json(trained))
    outcome = OUTCOME.validate_json(kept.read_bytes())
    base = outcome.base
    chats = [[*asked, {"role": "assistant", "content": answer(a, b)}] for a, b, asked in conversations(8)]
    for method, (plan, checkpoint) in outcome.trained.items():
        adapter, export = Path(checkpoint.adapter.uri), Path(checkpoint.model.uri)
        faults = [*file_faults(base, export), *tensor_faults(base, adapter, export), *token_faults(base, export)]
        merged = merge(base, adapter, export, chats)
        faults += merged.faults
        outcome.nats = max(outcome.nats, merged.nats)
        outcome.rounded_nats = max(outcome.rounded_nats, merged.rounded_nats)
        outcome.unequal |= bool(faults)
        outcome.wrong += [f"{method}: {fault}" for fault in (*faults, *prompt_faults(plan, export))]
    return outcome


def said(outcome: ModelOutcome) -> str:
    if outcome.refused:
        return f"refused: {outcome.refused.removeprefix('ValueError: base_model.uri: ')}"
    return "; ".join([*(f"{stage}: {why}" for stage, why in outcome.failed.items()), *outcome.wrong]) or "trained"


def in_transformers4(outcomes: Sequence[ModelOutcome]) -> float | None:
    """Of the models whose base loads there, the share whose export does, with the same tokens; None without it."""
    exports = {each.name: (each.base, c.model.uri) for each in outcomes for _, c in list(each.trained.values())[:1]}
    if not TRANSFORMERS4.is_file() or not exports:
        print(f"not loaded in transformers 4: {TRANSFORMERS4} is absent (make test-transformers4), or nothing trained")
        return None
    command = [TRANSFORMERS4, "-c", LOADS, *(str(folder) for pair in exports.values() for folder in pair)]
    loaded = iter(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]))
    pairs = {name: (next(loaded), next(loaded)) for name in exports}
    found = {name: base == export for name, (base, export) in pairs.items() if isinstance(base, list)}
    for name in (name for name, equal in found.items() if not equal):
        print(f"transformers 4: {name}: {pairs[name]}")
    return sum(found.values()) / len(found) if found else None


def figures(outcomes: Sequence[ModelOutcome], methods: Sequence[MethodName]) -> dict[str, Any]:
    trained = [each for each in outcomes if len(each.trained) == len(methods) and not each.failed]
    refused = {each.name: each.refused for each in outcomes if each.refused}
    return {
        "models": len(outcomes),
        "trained_all_methods": len(trained),
        "refused": refused,
        "trained_or_refused_before_labels": (len(trained) + len(refused)) / len(outcomes),
        "silently_wrong": sum(bool(each.wrong) for each in outcomes),
        "exports_equal": sum(not each.unequal for each in trained) / len(trained) if trained else None,
        "loads_in_transformers_4": in_transformers4(outcomes),
        "merged_max_nats": max(each.nats for each in outcomes),
        "base_check_max_s": round(max(each.check_s for each in outcomes), 1),
    }


def matrix(outcomes: Sequence[ModelOutcome]) -> Iterator[str]:
    yield "| model | family and habit | outcome | to be set | merged, rounded (nats) |"
    yield "|---|---|---|---|---|"
    for each in outcomes:
        chat = CHAT[each.name].model_dump(mode="json", exclude_defaults=True) if each.name in CHAT else {}
        needed = ", ".join(f"`{key}: {Path(value).name}`" for key, value in chat.items())
        outcome = said(each).replace("|", "\\|")
        merged = f"{each.nats:.0e}, {each.rounded_nats:.0e}" if each.trained else ""
        yield f"| {each.name} | {HABITS[each.name]} | {outcome} | {needed} | {merged} |"


def main() -> None:
    parser = options(__doc__, "one model that trains and one that is refused")
    parser.add_argument("--only", nargs="+", choices=list(HABITS), metavar="NAME", help="these models alone")
    parser.add_argument("--folder", type=Path, help="keeps what is made; a run that ended early goes on there")
    parser.add_argument("--write", action="store_true", help="the matrix into docs/models.md")
    chosen = parser.parse_args()
    begun, names = time.monotonic(), chosen.only or (["gpt2", "noend"] if chosen.small else list(HABITS))
    methods: list[MethodName] = ["dpo"] if chosen.small else list(METHODS)
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as temporary:
        root = chosen.folder or Path(temporary)
        first = root / "bases" / names[0]
        if not (root / "labelled.json").is_file():
            ModelLoop(root).prepare(model_ref(first if first.is_dir() else build(names[0], first)))
        found: dict[str, ModelOutcome] = {}
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            for each in as_completed([pool.submit(tried, root, name, methods) for name in names]):
                outcome = each.result()
                found[outcome.name] = outcome
                print(f"{outcome.name:<10} {time.monotonic() - begun:6.0f} s  {said(outcome)}", flush=True)
        ordered = [found[name] for name in names]
        last = figures(ordered, methods)
        if chosen.write:
            before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
            after = rest.partition(MARKS[1])[2]
            PAGE.write_bytes("\n".join([f"{before}{MARKS[0]}", *matrix(ordered), f"{MARKS[1]}{after}"]).encode())
    print(json.dumps({**last, "seconds": round(time.monotonic() - begun)}))


if __name__ == "__main__":
    main()
