"""Reward functions in files, as users write them: good ones, and each way of being a bad one."""

from pathlib import Path
from textwrap import dedent

from pipeline.recipe.custom import CustomReward

QUALITY = '''
import re


def facts(completion, reference):
    """Share of the reference's facts that the answer names."""
    named = [fact for fact in reference.split(";") if fact.strip().lower() in completion.lower()]
    return len(named) / len(reference.split(";"))


def quality(prompt, completion, reference, metadata):
    """Facts .5, an explanation .25, at most 25 words .15, a list or a full stop at the end .1."""
    explains = re.search(r"because|therefore|so that", completion)
    short = len(completion.split()) <= 25
    tidy = completion.rstrip().endswith(".")
    return 0.5 * facts(completion, reference) + 0.25 * bool(explains) + 0.15 * short + 0.1 * tidy
'''
"""The composed reward of seed 000: key facts .5, explanation .25, conciseness .15, formatting .10."""

BAD = """
import math, os, subprocess, sys, time


def reward(prompt, completion, reference, metadata):
    if completion == "hangs":
        while True:
            time.sleep(1)
    if completion == "leaves children":
        with open(metadata["pids"], "w") as pids:
            subprocess.Popen(["sh", "-c", "sleep 300 & echo $!"], stdout=pids).wait()
            print(subprocess.Popen(["sleep", "300"]).pid, file=pids)
        time.sleep(300)
    if completion == "prints":
        print("x" * 100_000)
        os.write(1, b"y" * 100_000)
        os.write(2, b"z" * 100_000)
        sys.stdout.flush()
        return 0.75
    if completion == "raises":
        raise KeyError("first\\nthe last line")
    if completion == "exits":
        sys.exit("over")
    if completion == "dies":
        os._exit(0)
    if completion == "memory":
        return len(bytearray(1 << 42))
    if completion == "environment":
        return "JUDGE_API_KEY" in os.environ or "PATH" not in os.environ
    return {
        "NaN": math.nan, "inf": math.inf, "-inf": -math.inf, "1e9": 1e9, "negative": -0.5, "str": "0.5",
        "list": [0.1, 0.2], "none": None, "rounding": 1 + 1e-12, "true": True, "int": 1, "complex": 1j,
    }[completion]
"""


def write_function(folder: Path, source: str, name: str = "reward", **settings: object) -> CustomReward:
    """The section of the recipe for a function in a file of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(dedent(source))
    return CustomReward.model_validate({"code": f"{folder.absolute()}/mine.py:{name}", **settings})
