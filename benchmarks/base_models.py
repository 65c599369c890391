"""Tiny base models of other families and habits: `python -m benchmarks.base_models OUT [NAME ...]`. Each has its own
tokenizer and template, and is fitted for a few seconds to add two numbers, so that its answers end and vary."""

import json
import random
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers as hf
from tokenizers import Tokenizer
from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration

from benchmarks.base_tokenizers import TokenizerFiles, answer, byte_fallback, byte_level, question, template

STEPS, BATCH, LEARNING_RATE, WRONG_SHARE = 110, 16, 4e-3, 0.4
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}
_NEOX_SIZE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
_NEOX_SIZE |= {"num_attention_heads": 4, "max_position_embeddings": 512}
SIZE: dict[str, Any] = {**_NEOX_SIZE, "num_key_value_heads": 2}


class Family(NamedTuple):
    """What a model's folder is made of. Settings name tokens, and the folder has their ids."""

    tokenizer: Callable[[], Tokenizer]
    files: TokenizerFiles
    end: str
    """The token after each answer that the model is fitted to."""
    config: Callable[..., Any]
    settings: dict[str, Any]
    """Of the config."""
    generation: dict[str, Any] | None = None
    """Of `generation_config.json`; None: the folder has none."""
    rows: Callable[[int], int] = lambda tokens: tokens
    """Of the embedding."""
    dtype: torch.dtype = torch.bfloat16
    architecture: Callable[[Any], Any] = hf.AutoModelForCausalLM.from_config
    shard_size: str = "1GB"
    finish: Callable[[Path], None] = lambda folder: None
    """Changes the folder, as those do who have the habit."""


def build(name: str, folder: Path, steps: int = STEPS) -> Path:
    """The model of that name, in a new folder; the same bytes each time. After few steps its answers are noise."""
    family = FAMILIES[name]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = family.tokenizer()
    family.files.write(folder, tokenizer)
    rows = family.rows(tokenizer.get_vocab_size())
    config = family.config(vocab_size=rows, **_with_ids(tokenizer, family.settings))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums depend on it
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = family.architecture(config).float()
        _fit(model, folder, tokenizer.token_to_id(family.end), steps)
    torch.set_num_threads(threads)
    model = model.to(family.dtype)
    model.config.dtype = family.dtype
    if family.generation is not None:
        model.generation_config = hf.GenerationConfig(**_with_ids(tokenizer, family.generation))
    model.save_pretrained(folder, max_shard_size=family.shard_size)
    if family.generation is None:
        (folder / "generation_config.json").unlink(missing_ok=True)
    family.finish(folder)
    return folder


def _with_ids(tokenizer: Tokenizer, settings: dict[str, Any]) -> dict[str, Any]:
    def ids(named: Any) -> Any:
        return [ids(each) for each in named] if isinstance(named, list) else tokenizer.token_to_id(named)

    return {key: ids(value) if "_token_i" in key else value for key, value in settings.items()}


def _fit(model: Any, folder: Path, end: int, steps: int) -> None:
    """Nearly half the answers are wrong, so that samples of a prompt differ."""
    tokenizer: Any = hf.AutoTokenizer.from_pretrained(folder)
    numbers, errors = random.Random(0), random.Random(0)

    def row() -> tuple[list[int], list[int]]:
        a, b = numbers.randrange(30), numbers.randrange(30)
        prompt = f"Q: {question(a, b)}\nA: "
        if tokenizer.chat_template:
            asked = [{"role": "user", "content": question(a, b)}]
            prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        text = answer(a, b, errors.choice([-2, -1, 1, 2]) if numbers.random() < WRONG_SHARE else 0)
        before, after = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (prompt, text))
        return before + after + [end], [-100] * len(before) + after + [end]

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    model.eval()
    for step in range(steps):
        rows = [row() for _ in range(BATCH)]
        width = max(len(each) for each, _ in rows)
        ids = torch.tensor([each + [0] * (width - len(each)) for each, _ in rows])
        labels = torch.tensor([each + [-100] * (width - len(each)) for _, each in rows])
        mask = torch.tensor([[1] * len(each) + [0] * (width - len(each)) for each, _ in rows])
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * (1 - step / steps)
        optimizer.step()


def _add_tokens(folder: Path, **tokens: Any) -> None:
    tokenizer: Any = hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.add_special_tokens(tokens)  # and nobody resizes the embedding
    tokenizer.save_pretrained(folder)


def _add_pad(folder: Path) -> None:
    (folder / "special_tokens_map.json").unlink()  # else the old file wins over tokenizer_config.json
    _add_tokens(folder, pad_token="[PAD]")


def _list_eos(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    config["eos_token_id"] = [config["eos_token_id"], config["eos_token_id"] - 2]
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _write_processor(folder: Path, processor: dict[str, Any] | None = None, **image: Any) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps(image), encoding="utf-8")
    if processor:
        (folder / "processor_config.json").write_text(json.dumps(processor), encoding="utf-8")


def _llama3() -> dict[str, Family]:
    specials = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                "<|eot_id|>", "<|finetune_right_pad_id|>"]  # fmt: skip
    bos, end_of_text, _, _, eom, eot, pad = specials
    files = TokenizerFiles("PreTrainedTokenizerFast", template("llama3"), eot, bos)
    ids = {"bos_token_id": bos, "eos_token_id": [end_of_text, eom, eot]}
    sampling = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    settings = {**SIZE, **UNTIED, **ids, "rope_theta": 500000.0}
    tokenizer = partial(byte_level, specials, bos=bos)
    llama3 = Family(tokenizer, files, eot, hf.LlamaConfig, settings, {**ids, **sampling}, shard_size="150KB")
    one_eos = {"bos_token_id": bos, "eos_token_id": eot}
    more = {"add_bos_token": True, "add_eos_token": False, "legacy": True}
    other = TokenizerFiles("LlamaTokenizerFast", template("llama3"), eot, bos, end_of_text, more=more)
    return {
        "llama3": llama3,
        "llama3p": llama3._replace(files=files._replace(pad=pad)),
        "llama31d": llama3._replace(files=files._replace(pad=pad, chat_template=template("llama31"))),
        "r1llama": Family(tokenizer, other, eot, hf.LlamaConfig, {**SIZE, **UNTIED, **one_eos}, one_eos),
    }


END_OF_TEXT, START, END = QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def _qwen() -> dict[str, Family]:
    more = {"add_prefix_space": False, "errors": "replace", "split_special_tokens": False}
    files = TokenizerFiles("Qwen2Tokenizer", template("chatml"), END, pad=END_OF_TEXT, more=more)
    sampling = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    ids = {"bos_token_id": END_OF_TEXT, "eos_token_id": END}
    ends = {"eos_token_id": [END, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    generation = {**ends, **sampling, "bos_token_id": END_OF_TEXT}
    tied = {**SIZE, **TIED, **ids}
    chatml = Family(partial(byte_level, QWEN), files, END, hf.Qwen2Config, tied, generation)
    qwen2 = chatml._replace(files=files._replace(chat_template=template("qwen2")))
    qwen3 = chatml._replace(config=hf.Qwen3Config, settings={**tied, "head_dim": 16})
    thinks = qwen3._replace(tokenizer=partial(byte_level, [*QWEN, "<think>", "</think>"]))
    experts = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    plain = files._replace(more={})
    vision = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    return {
        "qwen2": qwen2,
        "qwen2f16": qwen2._replace(dtype=torch.float16),
        "qwen3": thinks._replace(
            files=files._replace(chat_template=template("qwen3")), settings={**qwen3.settings, **UNTIED}
        ),
        "thinkopen": thinks._replace(files=files._replace(chat_template=template("thinkopen"))),
        "rowsmore": qwen3._replace(rows=lambda tokens: tokens + 64),
        "rowsfewer": chatml._replace(finish=_add_pad),
        "rowsfewer2": chatml._replace(
            finish=partial(_add_tokens, additional_special_tokens=["<tool_call>", "</tool_call>"])
        ),
        "noend": chatml._replace(
            files=files._replace(chat_template=template("noend"), eos=END_OF_TEXT),
            settings={**tied, "eos_token_id": END_OF_TEXT},
            end=END_OF_TEXT,
        ),
        "noeosgen": chatml._replace(generation=None, finish=_list_eos),
        "qwen3moe": chatml._replace(
            files=plain, config=hf.Qwen3MoeConfig, settings={**tied, **UNTIED, **experts}, generation=ends
        ),
        "qwen35c": Family(
            partial(byte_level, [*QWEN, *vision]), plain._replace(jinja=True), END,
            _qwen35, {**dict(zip(names, vision, strict=True)), "eos_token_id": END}, ends,
            architecture=Qwen3_5ForConditionalGeneration._from_config,
            finish=partial(_write_processor, image_processor_type="Qwen2VLImageProcessorFast", patch_size=14),
        ),
    }  # fmt: skip


def _qwen35(vocab_size: int, eos_token_id: int, **ids: int) -> Qwen3_5Config:
    """A composite whose causal class is text only."""
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16}
    layers = {"linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "head_dim": 16}
    text = {**SIZE, **linear, **layers, **UNTIED, "vocab_size": vocab_size, "eos_token_id": eos_token_id}
    tower = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 64}
    vision = {**tower, "patch_size": 14, "num_position_embeddings": 16}
    return Qwen3_5Config(text_config=text, vision_config=vision, **ids, **UNTIED)


def _older() -> dict[str, Family]:
    """GPT-2, its tokenizer in SmolLM, and GPT-NeoX."""
    files = TokenizerFiles("GPT2Tokenizer", template("chatml"), END, END_OF_TEXT, END_OF_TEXT, END_OF_TEXT,
                           more={"add_prefix_space": False})  # fmt: skip
    settings = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": END_OF_TEXT}
    eos, tokenizer = {"eos_token_id": END}, partial(byte_level, QWEN)
    smol_ids = {**eos, "bos_token_id": START, "pad_token_id": END}
    smol = files._replace(chat_template=template("qwen2"), bos=START, pad=END)
    neox_files = files._replace(tokenizer_class="GPTNeoXTokenizer", pad="<|padding|>")
    ids = {"bos_token_id": END_OF_TEXT, "eos_token_id": END}
    chat = Family(
        partial(byte_level, [END_OF_TEXT, "<|padding|>", START, END]), neox_files, END, hf.GPTNeoXConfig,
        {**_NEOX_SIZE, **UNTIED, **ids}, rows=lambda tokens: tokens + 20, dtype=torch.float16,
    )  # fmt: skip
    return {
        "gpt2": Family(tokenizer, files, END, hf.GPT2Config, {**settings, **eos}, eos, dtype=torch.float32),
        "smollm": Family(tokenizer, smol, END, hf.LlamaConfig, {**SIZE, **TIED, **smol_ids}, smol_ids),
        "neoxchat": chat,
        "neoxbase": chat._replace(
            files=neox_files._replace(chat_template=None, eos=END_OF_TEXT, pad=None),
            settings={**chat.settings, "eos_token_id": END_OF_TEXT},
            end=END_OF_TEXT,
        ),
    }


GEMMA_SIZE: dict[str, Any] = {**SIZE, "head_dim": 16, "sliding_window": 64, "query_pre_attn_scalar": 16}


def _gemma() -> dict[str, Family]:
    first = ["<pad>", "<eos>", "<bos>", "<unk>"]
    specials = ["<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]
    _, end, *image = specials
    more = {"add_bos_token": True, "add_eos_token": False}
    files = TokenizerFiles("GemmaTokenizerFast", template("gemma3"), "<eos>", "<bos>", "<pad>", "<unk>", more=more)
    ids = {"bos_token_id": "<bos>", "eos_token_id": "<eos>", "pad_token_id": "<pad>"}
    ends, settings = {**ids, "eos_token_id": ["<eos>", end]}, {**GEMMA_SIZE, **ids}
    sampling = {"do_sample": True, "top_k": 64, "top_p": 0.95, "cache_implementation": "hybrid"}
    tokenizer = partial(byte_fallback, first, specials, bos="<bos>")
    gemma3 = Family(tokenizer, files, end, hf.Gemma3TextConfig, settings, {**ends, **sampling})
    names = ("boi_token_index", "eoi_token_index", "image_token_index")
    processor = {"image_seq_length": 4, "processor_class": "Gemma3Processor"}
    size = {"size": {"height": 28, "width": 28}, "image_seq_length": 4}
    return {
        "gemma2": gemma3._replace(
            files=files._replace(tokenizer_class="GemmaTokenizer", chat_template=template("gemma2")),
            config=hf.Gemma2Config,
            generation=ends,
        ),
        "gemma3t": gemma3,
        "gemma3c": gemma3._replace(
            config=_gemma3_composite,
            settings={**ends, **dict(zip(names, image, strict=True))},
            generation=ends,
            architecture=hf.Gemma3ForConditionalGeneration._from_config,
            finish=partial(_write_processor, processor=processor, image_processor_type="Gemma3ImageProcessor", **size),
        ),
    }


def _gemma3_composite(vocab_size: int, **ids: Any) -> hf.Gemma3Config:
    text = hf.Gemma3TextConfig(vocab_size=vocab_size, **GEMMA_SIZE, bos_token_id=2, eos_token_id=1, pad_token_id=0)
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = {**tower, "image_size": 28, "patch_size": 14}
    return hf.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4, **ids)


def _spaced() -> dict[str, Family]:
    """Mistral and Phi-3, whose tokenizers put a space before each text."""
    first, bos, eos = ["<unk>", "<s>", "</s>"], "<s>", "</s>"
    more = {"add_bos_token": True, "add_eos_token": False, "legacy": True, "use_default_system_prompt": False}
    files = TokenizerFiles("LlamaTokenizer", template("mistral"), eos, bos, unk="<unk>", more=more)
    ids = {"bos_token_id": bos, "eos_token_id": eos}
    tokenizer = partial(byte_fallback, first, [], bos=bos, prefix=True)
    settings = {**SIZE, **UNTIED, **ids, "sliding_window": None}
    mistral = Family(tokenizer, files, eos, hf.MistralConfig, settings, ids)
    turns = [END_OF_TEXT, "<|assistant|>", "<|end|>", "<|system|>", "<|user|>"]
    adds_none = {"add_bos_token": False, "add_eos_token": False, "legacy": False}
    phi_files = TokenizerFiles("LlamaTokenizer", template("phi3"), END_OF_TEXT, bos, END_OF_TEXT, "<unk>",
                               more=adds_none)  # fmt: skip
    phi_ids = {"bos_token_id": bos, "eos_token_id": END_OF_TEXT, "pad_token_id": END_OF_TEXT}
    return {
        "mistral": mistral,
        "mistralp": mistral._replace(files=files._replace(pad=eos)),
        "phi3": Family(
            partial(byte_fallback, first, turns, prefix=True), phi_files, "<|end|>",
            hf.Phi3Config, {**SIZE, **UNTIED, **phi_ids}, {**phi_ids, "eos_token_id": [END_OF_TEXT, "<|end|>"]},
            rows=lambda tokens: tokens + -tokens % 64,
        ),
    }  # fmt: skip


FAMILIES = {**_llama3(), **_qwen(), **_older(), **_gemma(), **_spaced()}

if __name__ == "__main__":
    for each in sys.argv[2:] or FAMILIES:
        print(build(each, Path(sys.argv[1], each)), flush=True)
