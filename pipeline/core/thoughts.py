"""Thoughts and control tokens in the text of an answer, which a server without a parser leaves there.
A control token is known by its shape: a tokenizer reads it as one of its own, whoever wrote it."""

import re

import re2

_BAR = "|\uff5c"
_WORD = r"(?:[a-z]+:)?(?:think(?:ing)?|thoughts?)"
OPEN = rf"(?i:<\|?(?:begin_of_)?{_WORD}\|?>|\[THINK\]|◁think▷)"
CLOSE = rf"(?i:<(?:/\|?|\|/|\|end_of_){_WORD}\|?>|\[/THINK\]|◁/think▷)"
CONTROL = "|".join(
    (
        rf"<[{_BAR}][^<>{_BAR}\s][^<>\n]{{0,62}}[{_BAR}]>",  # <|im_end|>, <|fim_suffix|>, and DeepSeek's with wide bars
        rf"<[{_BAR}][a-z_]{{1,32}}>|<[a-z_]{{1,32}}[{_BAR}]>",  # Gemma 4: <|channel>, <channel|>
        r"</?(?:start|end)_of_turn>|<(?:bos|eos|pad|unk|unused\d+|extra_id_\d+)>",
        r"</?fim[_-](?:prefix|suffix|middle|pad)>|<(?:PRE|SUF|MID|EOT)>",
        r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|ARGS)\]|<</?SYS>>",
        r"^\s*<s>|</s>\s*$",
    )
)
CALL = r"</?(?:tool_calls?|function_calls?)>|<function=\w+>"
"""How models write a call; a server with a parser takes it out of the text. Instructions may quote it."""
BARE = r"^analysis[\s\S]*assistant(?:final|commentary)"
"""Harmony without its tokens: nothing shows where a thought ends."""

HINT = "|".join((OPEN, CLOSE, CONTROL, CALL, BARE))
"""Matches every text that is not plain."""

_control, _odd = map(re2.compile, (CONTROL, HINT))
_open, _close = re.compile(OPEN), re.compile(CLOSE)  # a completion may hold a lone surrogate, which RE2 does not take
_opened = re.compile(rf"{OPEN}\s*\Z")
_own_line = re.compile(rf"(?:^|\n)[ \t]*{CLOSE}[ \t]*(?:\n|$)")
_CHANNEL = r"\s*(?:<\|start\|>assistant)?<\|channel\|>{}<\|message\|>([^<]*(?:<(?!\|)[^<]*)*)"
_thought = re.compile(_CHANNEL.format("analysis"))
_final = re.compile(_CHANNEL.format("final") + r"(?:<\|(?:return|end)\|>)?\s*\Z")


class ControlTokens(ValueError):
    """The message quotes nothing of the text."""

    def __init__(self) -> None:
        super().__init__("control tokens")


def opening(prompt: str) -> str:
    """The end of a prompt that opens a thought for the model to write; empty where it opens none."""
    return opened[0] if (opened := _opened.search(prompt)) else ""


def without_opening(text: str) -> str:
    """An answer as the model continues a prompt that opens its thought."""
    opened = _open.match(text)
    return text[opened.end() :].removeprefix("\n") if opened else text


def check(text: str) -> None:
    """Raises ControlTokens for a text, not of the assistant, that holds one."""
    if _control.search(text):
        raise ControlTokens


def without_thoughts(text: str) -> str | None:
    """The answer that an assistant's text holds; None where a thought in it is not closed. Raises ControlTokens."""
    answer = _of_channels(text) if _has_channels(text) else _of_tags(text)
    if answer is not None and _odd.search(answer):
        raise ControlTokens
    return answer


def behind_thoughts(text: str) -> str | None:
    """The answer with its control tokens."""
    try:
        return _of_channels(text) if _has_channels(text) else _of_tags(text)
    except ControlTokens:
        return None


def _has_channels(text: str) -> bool:
    return text.lstrip().startswith(("<|channel|>", "<|start|>"))


def _of_tags(text: str) -> str | None:
    rest = text.lstrip()
    if not _open.match(rest):
        closed = _own_line.search(text)
        if closed is None or _open.search(text[: closed.start()]):
            return text
        rest = text[closed.end() :].lstrip()
    while _open.match(rest):
        close = _close.search(rest)
        if close is None:
            return None
        rest = rest[close.end() :].lstrip()
    return rest


def _of_channels(text: str) -> str | None:
    at, closed = 0, True
    while thought := _thought.match(text, at):
        at = thought.end()
        closed = text.startswith("<|end|>", at)
        at += len("<|end|>") if closed else 0
    if final := _final.match(text, at):
        return final[1].strip()
    if at and not text[at:].strip():
        return None  # the answer was never begun
    raise ControlTokens
