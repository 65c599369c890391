"""The shop's users: `python -m examples.own-tiny.users` asks the gateway of `pt serve` until Ctrl-C."""

import random
from contextlib import suppress
from importlib import import_module
from itertools import count
from time import sleep

from pipeline.demo.traffic import UserRequest, ask

make = import_module("examples.own-tiny.make")
URL = "http://127.0.0.1:8400/v1"


def main() -> None:
    known = make.questions(make.ASKED)
    for look in count():
        draw = random.Random(look)
        asked = draw.choices(known, k=200)
        about = [{"expected_answer": each.answer(make.NEW), "user_consent": "true"} for each in asked]
        requests = [
            UserRequest(draw.choice(make.PEOPLE), [{"role": "user", "content": each.prompt}], metadata, 32)
            for each, metadata in zip(asked, about, strict=True)
        ]
        print(f"{len(requests)} requests, {ask(URL, requests)} without an answer", flush=True)
        sleep(1)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
