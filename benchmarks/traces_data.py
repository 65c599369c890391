"""Seeded Langfuse export to measure the traces stage on (1.33 kB of JSON a row, eight files over four days), and
`truth.json`: how many rows end where. The same rows and seed give the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from isal import igzip

FILES, DAYS = 8, 4
START = np.datetime64("2026-07-01T00:00:00.000000")
RE_EXPORTED, COPIED, BROKEN = 0.05, 0.05, 0.005
"""Shares of all rows: the same observation with a newer `updated_at`, its content under another id, half a line."""
NO_CONSENT, REGULATED, FAILED, PERSONAL = 0.03, 0.02, 0.005, 0.06
"""Shares of the observations. The first three exclude each other; personal data is in any of them."""
CLEAN, CONSENT, REGION, ERROR = range(4)
MODELS = ("gpt-4o-mini", "claude-haiku", "llama-3.1-8b")
SYLLABLES = "ba be bi da de di fo ga ha ka ke la le li lo ma me mi na ne no pa pe ra re ri sa se so ta te ti to va vi"
SYSTEM = "You answer questions about orders, invoices and deliveries, in the language of the customer, in short."


class Truth(NamedTuple):
    """Where the rows of an export end: `admitted` and the reasons add up to `rows`; `masked` is part of `admitted`."""

    rows: int
    admitted: int
    malformed: int
    superseded: int
    duplicate: int
    consent: int
    region: int
    error: int
    masked: int
    json_bytes: int


def generate(folder: Path, rows: int, seed: int = 7) -> Truth:
    """The export under `folder`, written unless it is there already."""
    root = folder / f"langfuse-{rows}-{seed}"
    known = root / "truth.json"
    if known.is_file():
        return Truth(**json.loads(known.read_bytes()))
    (root / "observations_v2").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    extra = [int(rows * share) // FILES for share in (RE_EXPORTED, COPIED, BROKEN)]
    total = rows // FILES * FILES
    counts = dict.fromkeys(Truth._fields, 0) | {"rows": total}
    texts, late = _Texts(rng), list[str]()
    for number in range(FILES):
        made = _file(rng, texts, number, total // FILES - sum(extra), total, extra, counts)
        path = str(root / "observations_v2" / f"{number:04}.jsonl.gz")
        with igzip.IGzipFile(path, "wb", compresslevel=2, mtime=0) as out:
            last = number == FILES - 1
            counts["json_bytes"] += out.write("".join(late).encode())
            late = []
            for lines, again in made:
                late += again
                counts["json_bytes"] += out.write("".join(lines).encode())
            if last:
                counts["json_bytes"] += out.write("".join(late).encode())
    accounted = sum(counts[name] for name in Truth._fields[1:-2])
    assert accounted == total, f"{accounted} of {total} rows are accounted for"
    known.write_text(json.dumps(counts, indent=1), encoding="utf-8")
    return Truth(**counts)


def export_of(folder: Path, rows: int, seed: int = 7) -> Path:
    """Where `generate` puts the export: the folder above `observations_v2/`."""
    return folder / f"langfuse-{rows}-{seed}"


def _file(
    rng: np.random.Generator,
    texts: _Texts,
    number: int,
    size: int,
    total: int,
    extra: list[int],
    counts: dict[str, int],
) -> Iterator[tuple[list[str], list[str]]]:
    """Lines of one file in blocks, and those that a later file repeats."""
    first = number * (total // FILES)
    step = DAYS * 86_400_000_000 // total
    times = START + (np.arange(first, first + size) * step).astype("timedelta64[us]")
    fate = rng.choice(4, size, p=[1 - NO_CONSENT - REGULATED - FAILED, NO_CONSENT, REGULATED, FAILED])
    personal = rng.random(size) < PERSONAL
    drawn = rng.permutation(np.flatnonzero(fate == CLEAN))[: extra[0] + extra[1]]
    again = np.zeros(size, np.int8)
    again[drawn[: extra[0]]], again[drawn[extra[0] :]] = 1, 2
    broken = np.zeros(size, bool)
    broken[rng.choice(size, extra[2], replace=False)] = True
    for name, code in (("admitted", CLEAN), ("consent", CONSENT), ("region", REGION), ("error", ERROR)):
        counts[name] += int((fate == code).sum())
    counts["masked"] += int((personal & (fate == CLEAN)).sum())
    counts["superseded"] += extra[0]
    counts["duplicate"] += extra[1]
    counts["malformed"] += extra[2]
    shown = [text.replace("T", " ") for text in np.datetime_as_string(times).tolist()]
    draws = rng.integers(1 << 62, size=size)
    columns = (shown, *(column.tolist() for column in (fate, personal, again, broken, draws)))
    for start in range(0, size, 10_000):
        lines, late = list[str](), list[str]()
        for row, (time, what, private, repeat, cut, draw) in enumerate(
            zip(*(column[start : start + 10_000] for column in columns), strict=True), start + first
        ):
            tail = texts.tail(time, what, private, draw)
            lines.append(f'{{"id":"obs-{row:012x}","trace_id":"tr-{row:016x}","updated_at":"{time}"{tail}')
            if repeat == 1:
                newer = f"{time[:8]}{int(time[8:10]) + 1:02}{time[10:]}"
                late.append(f'{{"id":"obs-{row:012x}","trace_id":"tr-{row:016x}","updated_at":"{newer}"{tail}')
            elif repeat == 2:
                late.append(f'{{"id":"obs-c{row:011x}","trace_id":"tr-c{row:015x}","updated_at":"{time}"{tail}')
            if cut:
                lines.append(lines[-1][: len(lines[-1]) // 2] + "\n")
        yield lines, late


class _Texts:
    """Sentences of made-up words, escaped as JSON in JSON, and what is put between them."""

    def __init__(self, rng: np.random.Generator) -> None:
        syllables = SYLLABLES.split()
        words = ["".join(rng.choice(syllables, rng.integers(1, 5))) for _ in range(6000)]
        weights = 1 / np.arange(1, len(words) + 1)
        drawn = rng.choice(words, (20_000, 12), p=weights / weights.sum())
        ends = (". ", ".\n", "! ", ' ("as agreed"). ', ", at 42.50 each. ") * 5
        ends = (*ends[1:], ": 42.50 € plus 19 % TVA à payer. ")  # a text in five is not ASCII
        said = [" ".join(row.tolist()).capitalize() + ends[n % len(ends)] for n, row in enumerate(drawn)]
        self.sentences = [_escaped(text) for text in said]
        self.personal = [_escaped(text) for text in _personal(rng, 5000)]

    def tail(self, time: str, fate: int, private: bool, draw: int) -> str:
        """A line from `start_time` on: everything that a repetition has in common with its first."""
        said, size = self.sentences, len(self.sentences)
        a, b, c = draw % size, draw // 7 % size, draw // 1009 % size
        asked = said[a] + said[b] + said[c]
        answered = said[a - b] + said[b - c] + said[c - a] + (said[a - 5000] if draw & 64 else "")
        if private:
            note = self.personal[draw % len(self.personal)]
            asked, answered = (asked + note, answered) if draw & 128 else (asked, answered + note)
        consent = '"user_consent":"false",' if draw & 256 else ""
        if fate != CONSENT:
            consent = '"user_consent":"true",'
        region = "eu" if fate == REGION else ("us", "kr")[draw & 1]
        level, status, output = "DEFAULT", "null", f'"{{\\"role\\":\\"assistant\\",\\"content\\":\\"{answered}\\"}}"'
        if fate == ERROR:
            level, status, output = "ERROR", '"upstream timed out"', "null"
        told, wrote = len(asked) // 4, len(answered) // 4
        return (
            f',"type":"GENERATION","name":"answer","start_time":"{time}","end_time":"{time}"'
            f',"user_id":"user-{draw % 50_021}","session_id":"session-{draw % 400_009}","environment":"default"'
            f',"provided_model_name":"{MODELS[draw % 3]}","level":"{level}","status_message":{status}'
            f',"input":"[{{\\"role\\":\\"system\\",\\"content\\":\\"{SYSTEM}\\"}},'
            f'{{\\"role\\":\\"user\\",\\"content\\":\\"{asked}\\"}}]","output":{output}'
            f',"metadata":{{{consent}"region":"{region}","release":"2026.07","channel":"web","attempt":"{draw & 3}"}}'
            f',"usage_details":{{"input":{told},"output":{wrote},"total":{told + wrote}}}'
            f',"latency":{0.2 + draw % 9000 / 1000:.3f}}}\n'
        )


def _escaped(text: str) -> str:
    """Text as it stands inside a JSON string that is itself the value of a JSON string."""
    inner: Any = msgspec.json.encode(text).decode()[1:-1]
    return msgspec.json.encode(inner).decode()[1:-1]


def _personal(rng: np.random.Generator, count: int) -> Iterator[str]:
    """Sentences with one piece of personal data each. The numbers are drawn; the domains are reserved for examples."""
    for n in range(count):
        d = rng.integers(0, 10, 20).tolist()
        digits = "".join(map(str, d))
        yield (
            f"Write to k{digits[:6]}@example.com please. ",
            f"My number is +1 415 555 {digits[:4]}, after five. ",
            f"The card is {_card(digits[:11])}. ",
            f"It came from 10.{d[0]}{d[1]}.{d[2]}{d[3]}.{d[4]}{d[5]} last night. ",
            f"For the form: {100 + d[0]}-{10 + d[1]}-{1000 + d[2]}. ",
        )[n % 5]


def _card(digits: str) -> str:
    body = "4929" + digits
    doubled = [int(c) if n % 2 else sum(divmod(2 * int(c), 10)) for n, c in enumerate(reversed(body))]
    number = body + str(-sum(doubled) % 10)
    return " ".join(number[i : i + 4] for i in range(0, 16, 4))
