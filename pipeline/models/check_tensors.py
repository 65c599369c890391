"""The part of the base check that asks what transformers' class makes of the weight files. The model is built on the
meta device by transformers' own loader: headers are read, values are not."""

import contextlib
import io
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.models.check import BaseFinding, Findings
from pipeline.models.export import places, saved_state
from pipeline.models.tokenizer import tokens_of
from pipeline.recipe import Lora

SHOWN = 3


def tensors(folder: Path, tokenizer: Any, lora: Lora | None) -> Findings:
    question = "weights"
    model, info = _on_meta(folder)
    if missing := sorted(info["missing_keys"]):
        yield BaseFinding("error", question, (
            f"{_some(missing)} of {type(model).__name__} are not in the files: transformers would draw them at random, "
            "each time anew. Save the model whole, or set tie_word_embeddings as it was trained."
        ))  # fmt: skip
    else:
        try:
            places(folder, saved_state(model))
        except ValueError as error:
            yield BaseFinding("error", question, str(error))
    if unused := sorted(info["unexpected_keys"]):
        text = f"{_some(unused)} are not of {type(model).__name__}: they are not trained, and the export keeps them."
        yield BaseFinding("warning", question, text)
    yield from _rows(model, tokenizer, tokens_of(folder) or tokenizer.get_vocab())
    yield BaseFinding(
        "ok", question, f"{type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters"
    )
    if lora is not None:
        yield from _adapters(model, tokenizer, lora)


def _on_meta(folder: Path) -> tuple[Any, dict[str, Any]]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            loaded: Any = AutoModelForCausalLM.from_pretrained(str(folder), device_map="meta", output_loading_info=True)
            return loaded
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def _rows(model: Any, tokenizer: Any, tokens: Mapping[str, int]) -> Findings:
    """Tokens that the embedding has no row for: a prompt with one of them is a crash."""
    rows = model.get_input_embeddings().weight.shape[0]
    beyond = {token: id for token, id in tokens.items() if id >= rows}
    if not beyond:
        return
    named = [token for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) if token in beyond]
    text = f"{_some(sorted(beyond))} have no row in the embedding, which has {rows:,}"
    if named:
        yield BaseFinding("error", "weights", (
            f"{text}, and {named[0]} is in every batch. Resize the embedding (resize_token_embeddings) and save it."
        ))  # fmt: skip
    else:
        yield BaseFinding("warning", "weights", f"{text}: a run whose rows hold one stops before labels.")


def _adapters(model: Any, tokenizer: Any, lora: Lora) -> Findings:
    from peft import get_peft_model

    from pipeline.models.adapters import adapter_config

    question, tied = "adapters", bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False))
    ends = [model.get_input_embeddings(), *([model.get_output_embeddings()] if model.get_output_embeddings() else [])]
    names = {id(module): name for name, module in model.named_modules()}
    embeddings = {names.get(id(each), "") for each in ends}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted: Any = get_peft_model(model, adapter_config(lora, model, tokenizer))
    except ValueError as error:
        why = " ".join(str(error).split())[:200]
        yield BaseFinding("error", question, f"training.lora cannot be trained on it: {why}")
        return
    reached: list[str] = adapted.targeted_module_names
    if tied and (both := sorted(embeddings & set(reached))):
        yield BaseFinding("error", question, (
            f"training.lora.target_modules reaches {both[0]}, which is tied: merged, the model would be another one "
            "than was trained. Leave it out."
        ))  # fmt: skip
    kinds = sorted({name.rpartition(".")[2] for name in reached})
    yield BaseFinding("ok", question, f"{lora.target_modules} reaches {len(reached)} modules: {', '.join(kinds)}")


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
