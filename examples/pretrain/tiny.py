"""What the models of both embedded worlds are made of: a tokenizer of whole words, a tiny Qwen3, and its pretraining.

A world gives its words, its pattern and its text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CONTEXT = 1024
WARMUP = 20
PAD, UNK, START, END = SPECIAL_TOKENS = ("<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>")

# Turns are separated by a line break, not ended by one, so that a conversation ends with the token that ends an answer.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n<|im_start|>assistant\n' }}{% endif %}"
)


def word_tokenizer(tokens: Iterable[str], pattern: str, chat_template: str = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer of these tokens, after the special ones; a token may be named twice. `pattern`: what one is in a
    text; what it leaves out is unknown."""
    ids = {token: index for index, token in enumerate(dict.fromkeys([*SPECIAL_TOKENS, *tokens]))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNK,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        padding_side="left",
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
    )


def untrained(tokenizer: PreTrainedTokenizerFast, **config: Any) -> Qwen3ForCausalLM:
    """A model of about half a million parameters, drawn from torch's current random state."""
    ids = tokenizer.get_vocab()
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=ids[END],
            pad_token_id=ids[PAD],
            **config,
        )
    )
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=ids[END], pad_token_id=ids[PAD]
    )
    return model


def optimise(
    model: Qwen3ForCausalLM,
    batch: Callable[[int], dict[str, Tensor]],
    steps: int,
    learning_rate: float,
    least: float = 0.0,
    done: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Muon on the hidden matrices, AdamW on the rest, the rate falling linearly to `least` of itself.

    `batch`: inputs with labels of a step, from 0 on. `done`: told of each step, from 1 on, and its loss.
    """
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers = [
        torch.optim.Muon(hidden, lr=learning_rate, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=learning_rate),
    ]

    def rate(step: int) -> float:
        return min((step + 1) / WARMUP, max(least, 1 - step / steps))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    for step in range(steps):
        model.train()
        loss: Tensor = model(**batch(step)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        done(step + 1, loss.item())
    model.eval()
