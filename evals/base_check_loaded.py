"""The part of the base check that loads the model: what tokenizer and chat template make of text, and what the class of
transformers makes of the weight files. It is built on the meta device by transformers' own loader: headers are read,
values are not."""

import contextlib
import io
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from evals.base_check import Findings
from pipeline.models.export import places, saved_state
from pipeline.models.rendering import folder_template, left_out, rendered
from pipeline.models.tokenizer import stop_ids, tokens_of
from pipeline.recipe import Lora
from pipeline.registry.base_findings import BaseFinding

PLAIN = ("Add 17 and 4.", "a  b   c", "first\nsecond\n\n\tthird", " leading and trailing ")
FOREIGN = ("naïve café", "日本語の文", "🙂")
QUESTION, ANSWER = "probe question 17", "probe answer 4"
ASKED = [{"role": "user", "content": QUESTION}]
ANSWERED = [*ASKED, {"role": "assistant", "content": ANSWER}]
DAY = "PROBE-DATE"
TOKENIZER, TEMPLATE = "tokenizer", "chat template"
THOUGHT = re.compile(r"<think(?:ing)?>\s*</think(?:ing)?>")
OPEN = re.compile(r"<think(?:ing)?>\s*$")
REFUSED = (TemplateError, ValueError, TypeError, KeyError, AttributeError)
"""What a template raises."""


def tokenizer(folder: Path, loaded: Any) -> Findings:
    """Whether the class reads the file as it stands, and text comes back."""
    path = folder / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer

        plain = Tokenizer.from_file(str(path))
        texts = (*PLAIN, *FOREIGN)
        if others := [text for text in texts if _ids(loaded, text) != plain.encode(text, add_special_tokens=False).ids]:
            yield _error(
                TOKENIZER,
                f"{type(loaded).__name__} makes other tokens of {others[0]!r} than tokenizer.json. Set tokenizer_class "
                'in tokenizer_config.json to "PreTrainedTokenizerFast".',
            )
            return
    if lost := [text for text in PLAIN if _back(loaded, text).strip() != text.strip()]:
        back = _back(loaded, lost[0])
        yield _error(TOKENIZER, f"{lost[0]!r} comes back as {back!r}, and answers so too. Take another tokenizer.")
    if lost := [text for text in FOREIGN if _back(loaded, text).strip() != text]:
        text = f"{lost[0]!r} comes back as {_back(loaded, lost[0])!r}: such answers are trained and graded so."
        yield BaseFinding("warning", TOKENIZER, text)
    stops = " ".join(loaded.convert_ids_to_tokens(list(stop_ids(str(folder), loaded))))
    if not stops:
        yield _error(TOKENIZER, "no token ends an answer. Set eos_token_id in generation_config.json.")
    text = f"{type(loaded).__name__}, {len(loaded):,} tokens, pads with {loaded.pad_token}, stops at {stops}"
    yield BaseFinding("ok", TOKENIZER, text)


def template(folder: Path, loaded: Any) -> Findings:
    """Whether prompts and answers stand in what is rendered, and end where generation ends."""
    look = folder_template(folder)
    if look is None:
        yield _error(TEMPLATE, "there is none. Set base_model.chat.template to a file with one.")
        return
    try:
        prompt, whole = rendered(loaded, ASKED), rendered(loaded, ANSWERED, add_generation_prompt=False)
    except REFUSED as error:
        why = " ".join(str(error).split())[:200]
        yield _error(TEMPLATE, f"it does not render ({why}). Set base_model.chat.template to one that does.")
        return
    if QUESTION not in prompt or ANSWER not in whole:
        yield _error(
            TEMPLATE, "it leaves out the texts of messages. Set base_model.chat.template to one that has them."
        )
        return
    yield from _answer(folder, loaded, prompt, whole)
    if DAY in look.apply_chat_template(ASKED, strftime_now=lambda _: DAY):  # pyright: ignore[reportUnknownLambdaType]
        yield _error(TEMPLATE, "it writes the date: prompts differ from day to day. Set base_model.chat.date.")
    bos = loaded.bos_token_id
    if bos is not None and _ids(loaded, prompt)[:2] == [bos, bos]:
        yield _error(TEMPLATE, f"a prompt begins with {loaded.bos_token} twice. Set base_model.chat.template.")
    if absent := sorted(left_out(loaded)):
        text = f"no place for {', '.join(absent)}: a run whose rows hold them stops before labels"
        yield BaseFinding("ok", TEMPLATE, text)
    yield BaseFinding("ok", TEMPLATE, f"a prompt is rendered as {_short(prompt)}")


def _answer(folder: Path, loaded: Any, prompt: str, whole: str) -> Findings:
    """What stands between a prompt and its answer, and after it."""
    before, after = whole.rsplit(ANSWER, 1)
    opened = OPEN.search(prompt)
    start = prompt[: opened.start()] if opened else prompt
    if not before.startswith(start):
        text = "a prompt is rendered otherwise once an answer follows: calls of tools cannot be trained"
        yield BaseFinding("warning", TEMPLATE, text)
    elif between := THOUGHT.sub("", before.removeprefix(start)).strip():
        yield _error(
            TEMPLATE,
            f"it writes {_short(between)} before an answer, which a prompt leaves to the model: logged answers would "
            "be trained without it. Set base_model.chat.template to one whose prompt ends where the answer begins.",
        )
    if opened:
        yield BaseFinding("ok", TEMPLATE, "it opens a thought: logged answers are trained after an empty one")
    stops, ends = stop_ids(str(folder), loaded), _ids(loaded, after)
    if not any(id in stops for id in ends):
        named = " ".join(loaded.convert_ids_to_tokens(ends)) or "nothing"
        yield _error(
            TEMPLATE,
            f"it ends an answer with {named}, at which generation does not stop: a trained model would not stop. Name "
            "its end in eos_token_id of generation_config.json, or set base_model.chat.template to one that ends with "
            f"{' or '.join(loaded.convert_ids_to_tokens(list(stops)))}.",
        )


def _error(question: str, text: str) -> BaseFinding:
    return BaseFinding("error", question, text)


def _back(loaded: Any, text: str) -> str:
    return str(loaded.decode(_ids(loaded, text), skip_special_tokens=True))


def _ids(loaded: Any, text: str) -> list[int]:
    return list(loaded(text, add_special_tokens=False)["input_ids"])


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 120 else f"{shown[:60]} ... {shown[-50:]}"


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
