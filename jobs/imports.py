"""`pt import FILE|FOLDER|s3://...`: what is this, how many of its rows can be learned from, and the recipe's section.

It looks at the first rows of at most 20 files, and writes nothing, unless `--write RECIPE` names a recipe whose
`traces.source` it replaces. Licence, consent and days are never guessed: a person declares them in the section.
`pt import openai-export FOLDER` makes a recipe of the files of OpenAI's fine-tuning. `--list` has all formats.
Exit codes: 0 it can be read, 1 no source reads it, 2 it is not there, or the command is wrong.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from jobs.screen import GREEN, RED, YELLOW, named, paint, terminal_width
from pipeline.recipe.formats import formats
from pipeline.recipe.traces import Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.detect import FILES, ROWS, UNKNOWN, Folder, look
from pipeline.traces.gates import GATES, GateRules, check
from pipeline.traces.records import Reason
from pipeline.traces.rows import Rejection, Rows
from pipeline.traces.sources.imports import REWARD_KEY
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import address_of
from pipeline.traces.sources.tables import SMALL

EPOCH = date(1970, 1, 1)
"""Stands in for the day of rows without a time, while they are counted."""
SHOWN, CHARS, PARTS = 5, 100, 3
DECLARED = {
    "licence": "a person declares it: under which these rows may be trained on",
    "consent": "true: a person declares that licence and users allow training on every row",
    "day": "YYYY-MM-DD, the day of rows without a time of their own",
    "requests": "the file or folder of the requests, which the answers are joined to",
}
LACKING = {
    "time": "`day` dates all of them. Retention counts from it, and after a promotion only newer rows count.",
    "consent": "A row without a yes is not trained on. traces.consent_key names the key of metadata that says it; "
    "`consent: true` declares it for all rows.",
    "user": "Such a row cannot be forgotten by its user, and no cap on a user's share holds for it. "
    "Where rows have one, give its key: fields: {user: KEY}.",
}
"""What rows without it mean."""


class RowCounts(NamedTuple):
    """Of the first rows, as governance reads them with every consent given."""

    rows: int
    answered: int
    """That may be learned from."""
    out: dict[str, int]
    """The others, by reason."""
    without: dict[str, int]
    """Rows without time, consent or user."""
    detail: str
    shown: tuple[tuple[str, str], ...]
    """Questions and answers in short, masked."""


def main(arguments: Sequence[str]) -> int:
    options = parser()
    asked = options.parse_args(arguments)
    try:
        if asked.list:
            print(format_list())
            return 0
        if len(asked.place) == 1:
            return _import(asked.place[0], asked)
        if asked.place[:-1] == ["openai-export"]:
            from jobs.openai_export import export

            return export(Path(asked.place[1]), Path(asked.write or "exported.yaml"))
    except (ValueError, OSError) as error:
        print(f"import: {error}", file=sys.stderr)
        return 2
    options.error("give one file, folder or s3:// prefix, or openai-export and its folder")


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt import", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("place", nargs="*", metavar="PLACE", help="file, folder or s3:// prefix")
    options.add_argument("--json", action="store_true", help="one JSON object: format, kind, rows and what they lack")
    options.add_argument("--write", default="", metavar="RECIPE", help="put the section into this recipe")
    options.add_argument("--list", action="store_true", help="the known formats, as in docs/formats.md")
    return options


def _import(uri: str, asked: argparse.Namespace) -> int:
    folder = look(uri)
    section, counts, fault = dict[str, Any](), None, folder.fault
    if folder.kind not in ("none", UNKNOWN) and not fault:
        try:
            section = section_of(folder.format, place_of(uri, folder))
            if asked_for := [each.name for each in folder.others if each.format == f"{folder.format}_input"]:
                section["requests"] = f"{uri.rstrip('/')}/{asked_for[0]}"
            counts = count(section)
        except ValueError as error:
            fault = str(error)
    if counts and section["kind"] == "rows" and not counts.without["time"]:
        del section["day"]
    if asked.json:
        seen = {"answered": counts.answered, "without": counts.without} if counts else {}
        print(json.dumps({"format": folder.format, "kind": folder.kind, "rows": folder.rows, **seen}))
        return int(counts is None)
    for title, text, colour in [*_about(folder, fault, counts), *(_counted(counts) if counts else ())]:
        first, *more = named(title, text, terminal_width())
        print(paint(first, colour, sys.stdout.isatty()), *more, sep="\n")
    if counts is None:
        return 1
    for question, answer in counts.shown:
        print(f"  {question}\n    -> {answer}")
    print(f"\ntraces:\n{block(section)}", end="")
    if asked.write:
        print(f"\n{asked.write}: {put(Path(asked.write), section)}")
    return 0


def _about(folder: Folder, fault: str, counts: RowCounts | None) -> Iterator[tuple[str, str, str]]:
    """Lines on what it is: name, text and colour."""
    if known := formats().get(folder.format):
        yield "format", f"{folder.format}: {known.title}", GREEN if counts else RED
    else:
        keys = next((each.keys for each in folder.looks if each.keys), ())
        has = f"its rows have {', '.join(keys[:12])}" if keys else "it holds no rows"
        kinds = "kind: rows for logged calls (docs/traces.md), pairs or demonstrations for others (docs/imports.md)"
        yield "format", f"unknown: {has}. Say in fields where a row has what: {kinds}", RED
    for text in filter(None, (fault, known.note if known else "")):
        yield "", text, ""
    if folder.files > 1:
        yield "files", f"{len(folder.looks)} of {folder.files:,} were looked at", ""
    for each in folder.others:
        yield "other format", f"{each.name}: {each.format}", YELLOW


def section_of(name: str, uri: str) -> dict[str, Any]:
    """The section that reads a format. What a person has to say is null."""
    known = formats()[name]
    if known.kind in ("langfuse_export", "otel"):
        return {"kind": known.kind, "uri": uri}
    preset = {"kind": known.kind} if known.kind == "prompts" else {"kind": known.kind, "preset": name}
    fields = {"fields": known.fields} if known.kind == "prompts" and known.fields else {}
    requests = {"requests": None} if "key" in known.fields else {}
    return {**preset, "uri": uri, **fields, **requests, **dict.fromkeys(("licence", "consent", "day"))}


def place_of(uri: str, folder: Folder) -> str:
    """Where the files of the folder's format are: the folder, a folder in it, or the one file. Raises ValueError where
    files of other formats lie among them."""
    root, names = uri.rstrip("/"), [each.name for each in folder.looks if each.format == folder.format]
    others = [each.name for each in folder.others]
    if folder.kind == "langfuse_export":
        return f"{root}/{names[0]}".partition("/observations_v2/")[0].partition("/scores/")[0]
    below = {name.partition("/")[0] for name in names}  # of one file alone its own name
    if not others:
        return uri
    if len(below) == 1 and not below & {name.partition("/")[0] for name in others}:
        return f"{root}/{below.pop()}"
    raise ValueError(f"{uri}: {others[0]} is of another format than {names[0]}. Give each format a folder of its own.")


def count(section: Mapping[str, Any]) -> RowCounts:
    """The first rows, read and judged as the stage does it, with stand-ins for what is still to be declared."""
    stand_ins = {key: value for key, value in {"day": EPOCH, "licence": "undeclared"}.items() if key in section}
    consent = {} if section["kind"] == "rows" else dict.fromkeys(section.keys() & {"consent"}, True)
    settings = Traces.model_validate({"source": {**section, **stand_ins, **consent}})
    source, rules = open_source(address_of(settings, section["uri"])), GateRules(settings, datetime.now(UTC))
    gates = [each for each in GATES if each[0] is not Reason.CONSENT]
    rows, rejected = list[tuple[dict[str, Any], Reason | None]](), list[Rejection]()
    parts = [part for part in source.parts() if part.holds == "calls"]
    spread = FILES if all(part.files or part.size <= SMALL for part in parts) else PARTS
    chosen = parts[:: max(1, -(-len(parts) // spread))]
    most = min(ROWS, -(-PARTS * ROWS // max(1, len(chosen))))
    for part in chosen:
        first = Rows()
        for some in source.rows(part, sha256()):
            first.traces += some.traces
            first.rejected += some.rejected
            if len(first.traces) + len(first.rejected) >= most:
                break
        batch, unfit = BatchBuilder(settings, part.name).batch(first.traces[:most])
        masked, verdicts = check(batch, rules, gates)
        rows += zip(masked.to_pylist(), verdicts, strict=True)
        rejected += [*first.rejected[:most], *unfit]
    reasons = [*(each.reason for each in rejected), *(reason for _, reason in rows if reason)]
    kept = [row for row, reason in rows if reason is None]
    start = datetime.combine(EPOCH, time(), UTC)
    return RowCounts(
        rows=len(rows) + len(rejected),
        answered=len(kept),
        out={str(reason): times for reason, times in Counter(reasons).most_common()},
        without={
            "time": sum(row["timestamp"] == start for row, _ in rows),
            "consent": len(rows) if consent else sum(not row["consent"] for row, _ in rows),
            "user": sum(row["user_id"] is None for row, _ in rows),
        },
        detail=next((each.detail for each in rejected if each.detail), ""),
        shown=tuple((_short(row["messages"][-1]["content"]), _answer(row)) for row in kept[:SHOWN]),
    )


def _counted(counts: RowCounts) -> Iterator[tuple[str, str, str]]:
    out = "".join(f", {reason} {times}" for reason, times in counts.out.items())
    why = f" ({counts.detail})" if counts.detail else ""
    text = f"of the first {counts.rows}, {counts.answered} can be learned from, given consent{out}{why}"
    yield "rows", text, GREEN if counts.answered else RED
    for what, times in counts.without.items():
        if times:
            yield f"without {what}", f"{times} of {counts.rows}. {LACKING[what]}", YELLOW


def _answer(row: Mapping[str, Any]) -> str:
    """In short, with the reward of an imported one."""
    reward = json.loads(row["metadata"]).get(REWARD_KEY)
    return _short(row["completion"]) + ("" if reward is None else f" (reward {reward:g})")


def _short(text: str | None) -> str:
    line = " ".join((text or "(none)").split())
    return line if len(line) <= CHARS else f"{line[:CHARS]}..."


def block(section: Mapping[str, Any]) -> str:
    """The section as YAML below `traces:`, with a comment beside what a person declares."""
    lines = ["  source:"]
    for key, value in section.items():
        dumped = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
        lines.append(f"    {key}: {dumped}" + (f" # {DECLARED[key]}" if value is None else ""))
    return "".join(f"{line}\n" for line in lines)


def put(path: Path, section: Mapping[str, Any]) -> str:
    """Replace `traces.source` of a recipe; what was changed. Raises ValueError where there is none."""
    text, node = path.read_text(encoding="utf-8"), None
    value: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for key in ("traces", "source"):
        node, value = next((pair for pair in getattr(value, "value", ()) if pair[0].value == key), (None, None))
    if node is None:
        raise ValueError(f"{path} has no traces.source. Give a recipe: pt init makes one.")
    start, end = node.start_mark, value.end_mark
    before, after = text[: start.index - start.column], text[end.index - end.column :]
    path.write_text(before + block(section) + after, encoding="utf-8")
    return f"traces.source was\n{text[start.index : end.index].rstrip()}"


def format_list() -> str:
    """docs/formats.md: every known format, by the kind of source that reads it."""
    lines = [HEAD]
    for kind in sorted({each.kind for each in formats().values()}, key=lambda each: (each == "none", each)):
        of_kind = (f"- `{name}`: {each.title}" for name, each in formats().items() if each.kind == kind)
        lines += ["", "## Read by no source" if kind == "none" else f"## Kind `{kind}`", "", *of_kind]
    return "\n".join(lines)


HEAD = """# Formats

What `pt import` and `pt validate` know, by the keys of a file's first 100 rows. A format of kind `rows`, `pairs` or
`demonstrations` is a `preset` of that source. `pt import FILE` says what a format lacks, and what to do where no source
reads it. `pt import --list` prints this page."""
