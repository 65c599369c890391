"""The reward model itself: an encoder, a linear head on the last token, and its training, deterministic and in float32.
Imports torch: for the processes that train and score."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from jinja2 import TemplateError
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

from pipeline.models.rendering import rendered
from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.records import Finding
from pipeline.rewards.reward_model.records import (
    AnsweredChat,
    RewardModelJob,
    RewardModelOutcome,
    UserPart,
    too_little,
)

T = TypeVar("T")

SCORED_AT_ONCE = 32
SETTINGS_FILE, HEAD_FILE = "scorer.json", "head.safetensors"
UNENDED = Finding(0.0)
"""An answer without its end token is worth nothing: no model here has ever seen a user rate one."""
RatedIds = tuple[list[int], float]
"""The tokens of a conversation with its answer, and whether its user's thumb was up: 1, or 0."""


class InvalidBase(ValueError):
    """A model directory that no reward model can be trained from; a retry cannot help."""


class RewardModel:
    """Encoder, head and tokenizer of one folder. `max_tokens`: of a prompt with its answer."""

    def __init__(self, folder: str, max_tokens: int, head: torch.Tensor | None = None) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            config: Any = AutoConfig.from_pretrained(folder)
            self.encoder: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)
        except (OSError, ValueError) as error:
            raise InvalidBase(f"The model in {folder} cannot be loaded: {str(error).splitlines()[0]}") from error
        if not self.tokenizer.chat_template or self.tokenizer.eos_token_id is None:
            raise InvalidBase(f"The tokenizer in {folder} needs a chat template and an end token. Save it with both.")
        text_config = config.get_text_config()
        context = getattr(text_config, "max_position_embeddings", None) or max_tokens
        self.max_tokens, self.context = max_tokens, min(max_tokens, context)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder.to(self.device)
        # Zeros: before the first step every answer is worth one half.
        start = torch.zeros(text_config.hidden_size + 1) if head is None else head
        self.head = torch.nn.Parameter(start.to(self.device, torch.float32))

    @classmethod
    def load(cls, folder: str) -> "RewardModel":
        """The model that `save` wrote."""
        max_tokens: int = json.loads(Path(folder, SETTINGS_FILE).read_bytes())["max_tokens"]
        model = cls(folder, max_tokens, load_file(Path(folder, HEAD_FILE))["head"])
        model.encoder.eval()
        return model

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.encoder.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        save_file({"head": self.head.detach().cpu().contiguous()}, folder / HEAD_FILE)
        (folder / SETTINGS_FILE).write_text(json.dumps({"max_tokens": self.max_tokens}) + "\n", encoding="utf-8")

    def ids(self, messages: Sequence[dict[str, Any]], completion: str) -> list[int] | Finding:
        """Token ids of the conversation with the end token after the answer; or a finding that says why not."""
        try:
            text = rendered(self.tokenizer, messages)
        except (TemplateError, ValueError, TypeError, KeyError):
            return Finding(None, "template")
        prompt: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        answer: list[int] = self.tokenizer(completion, add_special_tokens=False)["input_ids"]
        ids = [*prompt, *answer, int(self.tokenizer.eos_token_id)]
        return ids if len(ids) <= self.context else Finding(None, "too_long")

    def logits(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """One logit a row, from the hidden state of its last token. Padding is on the right, where no token sees it."""
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True).to(self.device)
        mask = torch.arange(ids.shape[1], device=self.device)[None] < lengths[:, None]
        output = self.encoder(input_ids=ids, attention_mask=mask.long(), use_cache=False)
        last = output.last_hidden_state[torch.arange(len(rows), device=self.device), lengths - 1].float()
        return last @ self.head[:-1] + self.head[-1]

    @torch.no_grad()
    def score(self, completions: Sequence[AnsweredChat]) -> list[Finding]:
        """A value in [0, 1] for each, or none with the reason: too_long, template, not_finite."""
        findings = [UNENDED] * len(completions)
        rows: dict[int, list[int]] = {}
        for at, each in enumerate(completions):
            ids = self.ids(each.messages, each.completion) if each.finished else UNENDED
            if isinstance(ids, Finding):
                findings[at] = ids
            else:
                rows[at] = ids
        for batch in _batches(sorted(rows, key=lambda at: len(rows[at])), SCORED_AT_ONCE):
            values = torch.sigmoid(self.logits([rows[at] for at in batch])).tolist()
            for at, value in zip(batch, values, strict=True):
                findings[at] = Finding(value) if math.isfinite(value) else Finding(None, "not_finite")
        return findings


def make_deterministic() -> None:
    """The same bits for the same rows on the same machine."""
    torch.set_num_threads(1)
    torch.manual_seed(RewardModelSettings.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)


def train(job: RewardModelJob, emit: Callable[[str], None]) -> RewardModelOutcome:
    """Train on the job's rows, save to its target, and score the held-out thumbs and the probes.

    Raises InvalidBase. The outcome says why nothing was trained where the thumbs that the model can read are too few.
    """
    rows, model = job.rows, RewardModel(job.base, job.settings.max_tokens)
    read = {at: model.ids(json.loads(row.prompt), row.completion) for at, row in enumerate(rows) if row.part}
    unusable = Counter(ids.reason for ids in read.values() if isinstance(ids, Finding))
    usable = {at: ids for at, ids in read.items() if not isinstance(ids, Finding)}
    parts: dict[str, UserPart] = {rows[at].user: part for at in usable if (part := rows[at].part)}
    if lacks := too_little([(rows[at].user, rows[at].up) for at in usable], parts):
        return RewardModelOutcome(not_trained=lacks, unusable=unusable)
    trained, validation = (
        [(ids, float(rows[at].up)) for at, ids in usable.items() if rows[at].part == part]
        for part in ("train", "validation")
    )
    _fit(model, trained, validation, job.settings, emit)
    model.save(Path(job.target))
    scored = [at for at, row in enumerate(rows) if row.part in ("held_out", None)]
    texts = [AnsweredChat(json.loads(rows[at].prompt), rows[at].completion) for at in scored]
    findings = model.score(texts)
    return RewardModelOutcome(
        scores={at: each.value for at, each in zip(scored, findings, strict=True)},
        unusable=unusable,
    )


def _fit(
    model: RewardModel,
    trained: Sequence[RatedIds],
    validation: Sequence[RatedIds],
    settings: RewardModelSettings,
    emit: Callable[[str], None],
) -> None:
    """The model is left in evaluation, with the weights of the epoch of the least validation loss."""
    encoder = list(model.encoder.parameters())
    optimiser = torch.optim.AdamW(
        [
            {"params": encoder, "lr": settings.learning_rate},
            {"params": [model.head], "lr": settings.learning_rate * settings.head_rate},
        ],
        weight_decay=0.0,
    )
    shuffle = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    weights, head = model.encoder.state_dict(), model.head
    for epoch in range(settings.epochs):
        model.encoder.train()
        order = [trained[at] for at in torch.randperm(len(trained), generator=shuffle).tolist()]
        for batch in _batches(order, settings.batch_size):
            loss = _loss(model, batch)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([*encoder, model.head], 1.0)
            optimiser.step()
        model.encoder.eval()
        with torch.no_grad():
            batches = _batches(validation, SCORED_AT_ONCE)
            mean = sum(float(_loss(model, batch)) * len(batch) for batch in batches) / len(validation)
        losses.append(mean if math.isfinite(mean) else math.inf)
        if losses.index(min(losses)) == epoch:
            weights = {name: tensor.clone() for name, tensor in model.encoder.state_dict().items()}
            head = model.head.detach().clone()
        emit(f"epoch {epoch + 1} of {settings.epochs}: validation loss {mean:.4f}")
    model.encoder.load_state_dict(weights)
    with torch.no_grad():
        model.head.copy_(head)


def _loss(model: RewardModel, batch: Sequence[RatedIds]) -> torch.Tensor:
    logits = model.logits([ids for ids, _ in batch])
    targets = torch.tensor([up for _, up in batch], device=logits.device)
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)


def _batches(order: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(order), size):
        yield order[first : first + size]
