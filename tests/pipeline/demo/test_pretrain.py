import string
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from pipeline.demo import MODEL_DIR, MODEL_SHA256
from pipeline.demo.pretrain import (
    MAX_NEW_TOKENS,
    accuracy,
    answer_batch,
    build_tokenizer,
    completions,
    make,
    prompt_text,
)
from pipeline.demo.task import Problem, problems
from pipeline.demo.tiny import END, SPECIAL_TOKENS, UNK
from pipeline.storage import digest_file

pytestmark = pytest.mark.slow

ASCII = st.text(alphabet=sorted({*string.printable} - {"\x0b", "\x0c"})).filter(
    lambda text: not any(token in text for token in SPECIAL_TOKENS)
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)  # a second one is many times slower on a busy machine


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return AutoModelForCausalLM.from_pretrained(MODEL_DIR)


def test_the_kept_weights_are_the_declared_ones():
    assert digest_file(MODEL_DIR / "model.safetensors") == MODEL_SHA256


def test_the_kept_tokenizer_is_the_one_the_script_makes(tokenizer: PreTrainedTokenizerFast):
    result = build_tokenizer()
    assert tokenizer.get_vocab() == result.get_vocab()
    assert tokenizer.chat_template == result.chat_template
    assert (tokenizer.padding_side, tokenizer.eos_token) == ("left", END)
    assert sorted(result.get_vocab().values()) == list(range(len(result)))


def test_the_kept_model_is_small_and_whole(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast):
    assert 480_000 < model.num_parameters() < 520_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id
    assert sum(file.stat().st_size for file in MODEL_DIR.iterdir()) < 4_000_000


@given(text=ASCII)
def test_ascii_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str):
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("text", ["Mail ada@example.com or [EMAIL] about 14 apples.", "7*2=14. 14+16=30.\n#### 30"])
def test_traffic_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@given(text=st.text())
def test_any_text_is_a_prompt(tokenizer: PreTrainedTokenizerFast, text: str):
    assert tokenizer(prompt_text(tokenizer, text))["input_ids"]


def test_other_characters_are_unknown(tokenizer: PreTrainedTokenizerFast):
    assert tokenizer.tokenize("5 €") == ["5", " ", UNK]


def test_conversation_extends_its_prompt_and_ends_with_the_end(tokenizer: PreTrainedTokenizerFast):
    user, assistant = {"role": "user", "content": "Ada has 3"}, {"role": "assistant", "content": "#### 3"}
    prompt = prompt_text(tokenizer, "Ada has 3")
    whole = tokenizer.apply_chat_template([user, assistant], tokenize=False)
    assert prompt == "<|im_start|>user\nAda has 3<|im_end|>\n<|im_start|>assistant\n"
    assert whole == prompt + "#### 3<|im_end|>"
    assert tokenizer.apply_chat_template([user, assistant, user], tokenize=False).startswith(whole)


def test_only_the_answer_and_its_end_carry_loss(tokenizer: PreTrainedTokenizerFast):
    batch = answer_batch(tokenizer, [("Ada has 3", "#### 3"), ("Ada", "#### 12")])
    learnt = [tokenizer.decode(row[row != -100]) for row in batch["labels"]]
    assert learnt == ["#### 3<|im_end|>", "#### 12<|im_end|>"]
    assert batch["attention_mask"].sum(dim=1).tolist() == [
        len(row[row != tokenizer.pad_token_id]) for row in batch["input_ids"]
    ]


def test_every_solution_fits_the_completion_budget(tokenizer: PreTrainedTokenizerFast):
    for split in ("train", "heldout"):
        for problem in problems(0, split, 1000):
            assert len(tokenizer(problem.solution + END)["input_ids"]) <= MAX_NEW_TOKENS


def test_completions_follow_the_random_state(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast):
    prompts = [problem.prompt for problem in problems(0, "heldout", 20)]

    def sampled(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return completions(model, tokenizer, prompts)

    assert sampled(0) == sampled(0) != sampled(1)
    assert completions(model, tokenizer, prompts, greedy=True) == completions(model, tokenizer, prompts, greedy=True)


def test_the_same_seed_makes_the_same_model():
    first, second, other = (make(steps=4, seed=seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.variant
def test_the_kept_model_is_as_wrong_as_designed(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast):
    torch.manual_seed(0)
    assert 0.395 < accuracy(model, tokenizer, problems(99, "heldout", 2000)) < 0.475


@pytest.mark.variant
def test_the_script_still_makes_a_model_that_learns():
    model, tokenizer = make(steps=120)
    asked = problems(99, "heldout", 300)

    def loss(answers: Sequence[Problem]) -> float:
        pairs = [(problem.prompt, answer.solution) for problem, answer in zip(asked, answers, strict=True)]
        with torch.no_grad():
            return model(**answer_batch(tokenizer, pairs)).loss.item()

    assert loss(asked) < 1.0, "5.4 untrained"
    assert loss([*asked[1:], asked[0]]) > loss(asked) + 0.4, "an answer depends on its prompt"
