"""The part of the base check that asks what tokenizer and chat template make of text."""

import re
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from pipeline.models.check import BaseFinding, Findings
from pipeline.models.rendering import folder_template, left_out, rendered
from pipeline.models.tokenizer import stop_ids

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
