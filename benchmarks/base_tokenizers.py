"""Tokenizers and chat templates of the families in benchmarks/base_models.py, trained on the task of those models:
additions of two numbers. The templates are our own, in the manner of each family."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEMPLATES = Path(__file__).parent / "templates"
SYSTEM = "You are a careful helper. Answer in one line."
_WORDS = (
    "system user assistant model think You may think first. Cutting Knowledge Date Today Date December 2023 Jan Feb "
    "Nov 2026 The quick brown fox jumps over the lazy dog. What is the capital of France? Paris. How are you today?"
)
_WORD = r"'s|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def question(a: int, b: int) -> str:
    return f"Add {a} and {b}."


def answer(a: int, b: int, error: int = 0) -> str:
    total = a + b + error
    return f"{a} + {b} is {total}\n#### {total}"


def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8").removesuffix("\n")


def _corpus() -> Iterator[str]:
    draw = random.Random(1)
    for _ in range(4000):
        a, b = draw.randrange(40), draw.randrange(40)
        yield from (question(a, b), answer(a, b), SYSTEM)
    for word in _WORDS.split():
        yield from (f"{word} ", f" {word}")


def byte_level(specials: list[str], bos: str | None = None) -> Tokenizer:
    """As Llama 3, Qwen, GPT-2 and GPT-NeoX have it; 420 tokens."""
    tokenizer = Tokenizer(models.BPE())
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_WORD), "isolated"), bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(tokenizer, vocab_size=420 - len(specials), initial_alphabet=alphabet)
    return _with_specials(tokenizer, specials, bos)


def byte_fallback(first: list[str], specials: list[str], bos: str | None = None, prefix: bool = False) -> Tokenizer:
    """Spaces as underscores, and bytes for what has no token, as SentencePiece writes it (Gemma, Mistral, Phi-3); 480
    tokens and the specials. `first`: the tokens with the lowest ids. `prefix`: a space before every text."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    _train(trained, vocab_size=480 - 256 - len(first))
    model = json.loads(trained.to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = dict.fromkeys([*first, *(f"<0x{byte:02X}>" for byte in range(256)), *words, *specials])
    vocabulary = {token: id for id, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in model["merges"]]
    bpe = models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    tokenizer, spaces = Tokenizer(bpe), normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return _with_specials(tokenizer, [*first, *specials], bos)


def _train(tokenizer: Tokenizer, **options: Any) -> None:
    tokenizer.train_from_iterator(_corpus(), trainers.BpeTrainer(show_progress=False, **options))


def _with_specials(tokenizer: Tokenizer, specials: list[str], bos: str | None) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    if bos:
        named = [(bos, tokenizer.token_to_id(bos))]
        pair = [bos, "$A", bos, "$B:1"]
        tokenizer.post_processor = processors.TemplateProcessing(single=[bos, "$A"], pair=pair, special_tokens=named)
    return tokenizer


class TokenizerFiles(NamedTuple):
    """What a folder says of its tokenizer besides `tokenizer.json`."""

    tokenizer_class: str
    chat_template: str | None
    eos: str
    bos: str | None = None
    pad: str | None = None
    unk: str | None = None
    jinja: bool = False
    """The template has a file of its own."""
    more: dict[str, Any] = {}  # noqa: RUF012

    def write(self, folder: Path, tokenizer: Tokenizer) -> None:
        path = folder / "tokenizer.json"
        tokenizer.save(str(path))
        tree = json.loads(path.read_bytes())
        if not tree["model"]["byte_fallback"]:
            tokenizer.model.save(str(folder))
        names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        config = {
            "added_tokens_decoder": {str(each["id"]): {k: each[k] for k in names} for each in tree["added_tokens"]},
            "bos_token": self.bos,
            "eos_token": self.eos,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
            "tokenizer_class": self.tokenizer_class,
            **self.more,
            **({"pad_token": self.pad} if self.pad else {}),
            **({"unk_token": self.unk} if self.unk else {}),
        }
        if self.chat_template and self.jinja:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")
        elif self.chat_template:
            config["chat_template"] = self.chat_template
        special = {"bos_token": self.bos, "eos_token": self.eos, "pad_token": self.pad, "unk_token": self.unk}
        plain = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        written = {name: {"content": text, **plain} for name, text in special.items() if text}
        (folder / "tokenizer_config.json").write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
        (folder / "special_tokens_map.json").write_text(f"{json.dumps(written, indent=2)}\n", encoding="utf-8")
