"""What shows before a run: faults of a recipe, each a line that begins with its field and ends in an instruction; and
the newest rows of the source, through the real reader and the gates of a row. Nothing is written."""

import hashlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec
import pyarrow as pa
from jinja2 import TemplateError

from pipeline.core.chat_template import TURNS, folder_template, support_of
from pipeline.core.conversation import conversation
from pipeline.core.locations import bucket_fault, is_bucket
from pipeline.core.model_files import faults, weight_files
from pipeline.core.storage import shown_path
from pipeline.recipe import Recipe
from pipeline.recipe.traces import Traces
from pipeline.traces.annotations import StagedAnnotations, index_attributes, join_attributes
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.gates import GateRules, check
from pipeline.traces.rows import Rows
from pipeline.traces.scores import Meanings, ScoreCount, ScoreCounts
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address, Probed, SourcePart, named_day
from pipeline.traces.unrendered import kinds_of_row

REST_BYTES = 200 << 20
"""For what is not the model's: tables, labels, logs."""
ADAPTER_SHARE, FULL_SHARE = 0.1, 6.0
"""Of a model's bytes that a checkpoint takes with its optimiser: of an adapter, and of all weights in float32 with two
moments, where the model is kept in 16 bits."""
SAID_PARTS = 8
"""Newest parts of scores, and of attributes, that are read with the sample."""


def preflight(recipe: Recipe, address: Address | None, warehouse: str) -> list[str]:
    """`address`: of the source, where it is known. `warehouse`: of the governed table."""
    uri = recipe.base_model.uri
    relative = f" ({uri} is relative to {Path.cwd()})" if not Path(uri).is_absolute() else ""
    of_model = [f"base_model.uri{relative}: {fault}" for fault in faults(Path(uri).absolute())]
    return [
        *(of_model or _template_faults(recipe)),
        *(data_root_faults(recipe.data_root) or ([] if of_model else _disk_faults(recipe))),
        *(source_faults(address) if address else []),
        *_place_faults("traces.lake.warehouse", warehouse),
        *_place_faults("training.checkpoints.mirror", recipe.training.checkpoints.mirror or ""),
    ]


def _template_faults(recipe: Recipe) -> list[str]:
    folder = Path(recipe.base_model.uri).absolute()
    try:
        template = folder_template(folder)
        if template is None:
            raise ValueError("there is none")
        template.apply_chat_template([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        why = " ".join(str(error).split())[:200]
        return [f"base_model.uri: the chat template does not render ({why}). Save the tokenizer with one that does."]
    left_out = sorted(support_of(template).left_out - {TURNS})
    if left_out and recipe.training.tools is not None and recipe.selection.tools == "train":
        return [
            f"base_model.uri: the chat template of {folder} leaves out {', '.join(left_out)}, and training.tools "
            "replays them. Save the tokenizer with a template that renders tools, or set training.tools to null."
        ]
    return []


def data_root_faults(root: str, field: str = "data_root") -> list[str]:
    if "://" in root:
        return [f"{field}: {root} is no directory of this machine. Give a local or mounted path."]
    there = _existing(root)
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".writable-") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
    except OSError as error:
        why = error.strerror or str(error)
        return [f"{field}: {shown_path(root)} cannot be written ({why} in {there}). Point it to a disk that can be."]
    return []


def _existing(root: str) -> Path:
    place = Path(root).absolute()
    return next(folder for folder in (place, *place.parents) if folder.exists())


def _disk_faults(recipe: Recipe) -> list[str]:
    needed, free = disk_bytes(recipe)
    if free >= needed:
        return []
    return [
        f"data_root: {shown_path(recipe.data_root)} has {gigabytes(free)} free, and an iteration writes about "
        f"{gigabytes(needed)} (a tuned model, its checkpoints, tables). Free space, point it to another disk, or lower "
        "training.checkpoints.keep_last."
    ]


def model_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(folder))


def disk_bytes(recipe: Recipe) -> tuple[int, int]:
    """What one iteration may write, and what is free below the data root."""
    model, training = model_bytes(Path(recipe.base_model.uri)), recipe.training
    kept = training.checkpoints.keep_last + training.checkpoints.keep_best + 1
    checkpoint = model * (ADAPTER_SHARE if training.lora else FULL_SHARE)
    return round(model + kept * checkpoint) + REST_BYTES, shutil.disk_usage(_existing(recipe.data_root)).free


def source_faults(address: Address) -> list[str]:
    """Whether the source is there. A bucket is not listed, for it may be large."""
    if address.section.kind == "demo":
        return []
    try:
        source = open_source(address)
        if isinstance(source, Probed):
            source.probe()
        elif not is_bucket(address.uri):
            source.parts()
        elif fault := bucket_fault(address.uri):
            return [f"traces.source.uri: {fault}"]
    except ValueError as error:
        return [f"traces.source: {error}"]
    return []


def _place_faults(field: str, uri: str) -> list[str]:
    if is_bucket(uri):
        fault = bucket_fault(uri, may_be_empty=True)
        return [f"{field}: {fault}"] if fault else []
    path = uri.removeprefix("file://")
    return data_root_faults(path, field) if path and "://" not in path else []


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


class SourceSample(msgspec.Struct):
    """The newest rows of a source."""

    source: str
    parts: int
    """Of the whole source."""
    rows: int = 0
    admitted: int = 0
    rejected: Counter[str] = msgspec.field(default_factory=Counter[str])
    consented: int = 0
    """Rows whose consent key says yes."""
    metadata_keys: Counter[str] = msgspec.field(default_factory=Counter[str])
    models: Counter[str] = msgspec.field(default_factory=Counter[str])
    references: int = 0
    """Admitted rows with an expected answer."""
    feedback: int = 0
    """Rows with a score that is feedback."""
    scores: tuple[ScoreCount, ...] = ()
    scored_wrongly: str = ""
    """Why the stage would refuse the scores; "" where it would not."""
    takes: Counter[str] = msgspec.field(default_factory=Counter[str])
    """Admitted rows by what they take of a chat template (pipeline/core/chat_template.py)."""
    longest_prompt: list[dict[str, str]] = []
    """Of the admitted rows, by characters; for counting its tokens."""


def sample_source(address: Address, settings: Traces, now: datetime, limit: int = 1000) -> SourceSample:
    """Read blocks of the newest rows until there are `limit`. Gates that compare rows are the stage's, so a run admits
    as many rows or fewer. Raises ValueError when the source cannot be read."""
    source = open_source(address)
    parts = sorted(source.parts(), key=lambda part: (named_day(part.name) or "", part.name), reverse=True)
    sample, traces_seen, scored = SourceSample(source.label, len(parts)), Counter[str](), set[str]()
    meanings, scores, longest = Meanings(settings.scores), ScoreCounts(), 0

    def blocks(holds: str, most: int | None = None) -> Iterator[tuple[SourcePart, Rows]]:
        for part in [part for part in parts if part.holds == holds][:most]:
            for block in source.rows(part, hashlib.sha256()):
                for score in block.scores:
                    meant = meanings.of(score)
                    scores.add(score, meant)
                    scored.update([score.trace_id] if meant.value is not None else [])
                yield part, block

    for _ in blocks("scores", SAID_PARTS):
        pass
    with tempfile.TemporaryDirectory(prefix="sample-") as folder:
        said, attached = Path(folder, "said.parquet"), None
        with StagedAnnotations(said, 0, Meanings(())) as staged:
            for _, block in blocks("attributes", SAID_PARTS):
                staged.write(block)
        if said.exists():
            attached = index_attributes([said], Path(folder, "attributes.duckdb"))
        for part, block in blocks("calls"):
            if attached is not None:
                join_attributes(attached, block.traces)
            batch, unfit = BatchBuilder(settings, part.name).batch(block.traces)
            checked, reasons = check(batch, GateRules(settings, now))
            refused = [each.reason for each in (*block.rejected, *unfit)]
            sample.rejected.update(str(reason) for reason in (*reasons, *refused) if reason is not None)
            sample.rows += len(reasons) + len(refused)
            sample.admitted += reasons.count(None)
            sample.consented += sum(checked["consent"].to_pylist())
            traces_seen.update(batch["trace_id"].to_pylist())
            sample.models.update(batch["model"].to_pylist())
            for metadata in batch["metadata"].to_pylist():
                sample.metadata_keys.update(msgspec.json.decode(metadata, type=dict[str, msgspec.Raw]).keys())
            passed = checked.filter(pa.array([reason is None for reason in reasons], pa.bool_()))
            sample.references += passed.num_rows - passed["reference"].null_count
            for row in passed.select(["messages", "completion", "tool_calls", "tools"]).to_pylist():
                sample.takes.update(kinds_of_row(row))
                messages = conversation(row)
                length = sum(len(each["content"]) + len(each.get("tool_calls", "")) for each in messages)
                if length > longest:
                    longest, sample.longest_prompt = length, messages
            if sample.rows >= limit:
                break
    sample.feedback = sum(count for trace_id, count in traces_seen.items() if trace_id in scored)
    sample.scores, sample.scored_wrongly = tuple(scores.all()), scores.outside()
    return sample
