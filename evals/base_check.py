"""What a base model is, asked before anything is paid for: its files, tokenizer, chat template and tensors. Seconds on
a CPU; no weights are read. An error would make a run wrong or crash it late; a warning is for a person to judge."""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.core.model_files import INDEX, ONE_FILE, faults, model_files
from pipeline.core.storage import ModelRef, Store, digest_json
from pipeline.models.tokenizer import context_length, load_tokenizer
from pipeline.recipe import Lora
from pipeline.registry.base_findings import BaseCheck, BaseFinding, Level, check_place

ELSEWHERE = ("*.bin", "*.gguf", "*.pth", "consolidated*.safetensors")
"""Weights in other layouts, which other engines may load instead."""

Findings = Iterator[BaseFinding]


def check_once(store: Store, model: ModelRef, lora: Lora | None) -> tuple[BaseFinding, ...]:
    """The check of a model under the data root's records: asked again where the adapters or transformers changed."""
    place = check_place(model)
    asked = digest_json([lora.model_dump() if lora else None, version("transformers")])
    known = store.read(place, BaseCheck)
    if known is not None and known.asked == asked:
        return known.findings
    findings = tuple(check_base(Path(model.uri), lora))
    if not of_level(findings, "error"):
        store.write(place, BaseCheck(asked=asked, findings=findings))
    return findings


def check_base(folder: Path, lora: Lora | None = None) -> list[BaseFinding]:
    """All findings, in the order of the questions; what cannot be asked after an error is left out. `lora`: the
    adapters that are trained."""
    from evals.base_check_loaded import template, tensors, tokenizer

    findings = list(_files(folder))
    if any(each.level == "error" for each in findings):
        return findings
    findings += _asked("architecture", lambda: _architecture(folder))
    if any(each.level == "error" for each in findings):
        return findings
    try:
        loaded = load_tokenizer(str(folder))
    except Exception as error:  # boundary: whatever a tokenizer's class raises on a folder of somebody else's
        return [*findings, BaseFinding("error", "tokenizer", _not_loaded(folder, error))]
    findings += _asked("tokenizer", lambda: tokenizer(folder, loaded))
    findings += _asked("chat template", lambda: template(folder, loaded))
    return findings + _asked("weights", lambda: tensors(folder, loaded, lora))


def of_level(findings: Sequence[BaseFinding], level: Level) -> list[str]:
    """As faults of a recipe: each a line that begins with the field."""
    return [f"base_model.uri: {each.question}: {each.text}" for each in findings if each.level == level]


def _asked(question: str, ask: Callable[[], Findings]) -> list[BaseFinding]:
    """A question that the folder's files make fail is answered by the failure."""
    findings: list[BaseFinding] = []
    try:
        findings += ask()
    except Exception as error:  # boundary: transformers' loaders raise anything on files of somebody else's
        why = " ".join(str(error).split())[:300] or "no reason given"
        findings.append(BaseFinding("error", question, f"{type(error).__name__}: {why}. Save the model again."))
    return findings


def _files(folder: Path) -> Findings:
    """Whether the folder is one whole model, and one only."""
    question = "files"
    for fault in faults(folder):
        yield BaseFinding("error", question, fault)
    if not folder.is_dir():
        return
    if (folder / ONE_FILE).is_file() and (folder / INDEX).is_file():
        text = f"{ONE_FILE} and {INDEX} stand in one folder, and engines differ in which they load. Remove one of them."
        yield BaseFinding("error", question, text)
    others = sorted({path.name for pattern in ELSEWHERE for path in folder.glob(pattern)})
    if others:
        text = f"{', '.join(others[:3])}: weights in another layout are not trained and not exported."
        yield BaseFinding("warning", question, f"{text} Remove them, or other engines may serve them.")
    if (folder / "tekken.json").is_file():
        text = "tekken.json: vLLM takes it before tokenizer.json. Serve with --tokenizer-mode hf, or remove the file."
        yield BaseFinding("warning", question, text)
    names = model_files(folder)
    yield BaseFinding(
        "ok", question, f"{len(names)} files, {sum((folder / name).stat().st_size for name in names):,} bytes"
    )


def _architecture(folder: Path) -> Findings:
    """What the configuration says. Code of the folder is never run, also where transformers has a class of the type."""
    from transformers import AutoConfig

    question = "architecture"
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        code = json.loads(path.read_text(encoding="utf-8")).get("auto_map") if path.is_file() else None
        if code:
            text = (
                f"{name} names code of its own (auto_map), which is not run. Save the model by a class of transformers."
            )
            yield BaseFinding("error", question, text)
    config: Any = AutoConfig.from_pretrained(str(folder))
    text_config = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        yield BaseFinding(
            "error", question, f"{config.model_type} is an encoder-decoder. Take a causal language model."
        )
    if getattr(config, "quantization_config", None) or getattr(text_config, "quantization_config", None):
        text = (
            "the weights are quantised, and would be exported otherwise. Take the model in 16 bits (QLoRA: quantise)."
        )
        yield BaseFinding("error", question, text)
    context = context_length(str(folder))
    kind = f"{config.model_type} with {text_config.model_type}" if text_config is not config else config.model_type
    if context is None:
        yield BaseFinding(
            "warning", question, f"{kind} names no context length: long rows are told by the trainer alone."
        )
    else:
        yield BaseFinding("ok", question, f"{kind}, context {context:,} tokens")


def _not_loaded(folder: Path, error: Exception) -> str:
    """A tokenizer that does not load, with the package that its files need."""
    why = " ".join(str(error).split())[:200]
    if not (folder / "tokenizer.json").is_file():
        if (folder / "tokenizer.model").is_file():
            return f"tokenizer.model is SentencePiece's: install sentencepiece and protobuf ({why})."
        if any(folder.glob("*.tiktoken")):
            return f"the vocabulary is tiktoken's: install tiktoken ({why})."
    return f"it does not load ({why}). Save it with transformers."
