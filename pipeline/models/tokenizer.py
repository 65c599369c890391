"""A base model's tokenizer as every stage loads it, the tokens that end its answers, and its context."""

from contextlib import suppress
from pathlib import Path
from typing import Any


def load_tokenizer(folder: str) -> Any:
    """Pads on the left. Without a pad token of its own it pads with its end token: no stage computes a loss on padding,
    or attends to it. Raises ValueError for a tokenizer with neither."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise ValueError(f"The tokenizer in {folder} has no pad token and no end token. Save it with an eos_token.")
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def stop_ids(folder: str, tokenizer: Any) -> tuple[int, ...]:
    """Token ids that end a completion: those of config.json, of generation_config.json and of the tokenizer. Empty
    where none of them names one: then only the limit ends it."""
    from transformers import AutoConfig, GenerationConfig

    config: Any = AutoConfig.from_pretrained(folder)
    declared = [config.get_text_config().eos_token_id, tokenizer.eos_token_id]
    with suppress(OSError):  # there is no such file
        declared.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    ids = [each if isinstance(each, list) else [each] for each in declared]
    return tuple(sorted({int(id) for some in ids for id in some if id is not None}))


def context_length(folder: str) -> int | None:
    """Tokens that a model can attend to, by transformers' own names for it (`n_positions` is one); None where its
    configuration does not say."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder)
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def tokens_of(folder: Path) -> dict[str, int]:
    """The tokens of `tokenizer.json` by text, without those that a class adds; empty where there is no such file."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    return Tokenizer.from_file(str(path)).get_vocab() if path.is_file() else {}


def tokens_without_rows(folder: Path) -> list[str]:
    """Tokens that the embedding has no row for, by the configuration."""
    from transformers import AutoConfig

    rows = AutoConfig.from_pretrained(str(folder)).get_text_config().vocab_size
    return sorted(token for token, id in tokens_of(folder).items() if id >= rows)
