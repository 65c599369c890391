"""A real vLLM server, started and ended as the step does it: same seed, same answer, and nothing of it stays behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pipeline.core.processes import session_members
from pipeline.core.storage import ModelRef, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe.serving import TransformersServing, VllmServing
from pipeline.serving.inference import Answer, AnswerRequest, InferenceEngine, InferenceSession, Sampling, answer_seed
from pipeline.serving.transformers_engine import TransformersEngine
from pipeline.serving.vllm_engine import VllmEngine
from tests.processes import wait_for

from ...servers import VLLM_ON_CPU, vllm_python

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
ROOT = Path(__file__).parents[3]
SERVING = VllmServing(in_flight=16, start_timeout_s=540)
REQUESTS = [
    AnswerRequest(key=str(n), messages=[{"role": "user", "content": p.prompt}], seed=answer_seed(0, str(n), 0))
    for n, p in enumerate(problems(7, "heldout", 48))
]
DRAWN, GREEDY = Sampling(temperature=1.0, max_completion_tokens=32), Sampling(temperature=0, max_completion_tokens=32)
STEP = """
import sys, time
from pathlib import Path
from pipeline.recipe.serving import VllmServing
from pipeline.serving.vllm_engine import VllmEngine
from pipeline.core.storage import model_ref
engine = VllmEngine(VllmServing(start_timeout_s=540), Path(sys.argv[1]), Path(sys.argv[2]), print)
with engine.open("champion", model_ref(sys.argv[3])):
    print("open", flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (VLLM_ON_CPU | {"OMP_NUM_THREADS": "1"}).items():
            patch.setenv(name, value)
        yield vllm_python()


@pytest.fixture(scope="module")
def engine(python: Path, tmp_path_factory: pytest.TempPathFactory) -> VllmEngine:
    return VllmEngine(SERVING, python, tmp_path_factory.mktemp("vllm"), print)


@pytest.fixture(scope="module")
def champion(engine: VllmEngine) -> Iterator[InferenceSession]:
    with engine.open("champion", model_ref(MODEL_DIR)) as session:
        yield session


def answered(session: InferenceSession, sampling: Sampling, requests: list[AnswerRequest] = REQUESTS) -> list[Answer]:
    answers: dict[str, Answer] = {}
    session.answer(requests, sampling, lambda answer: answers.update({answer.key: answer}))
    assert "error" not in {answer.stop for answer in answers.values()}
    return [answers[request.key] for request in requests]


def texts(session: InferenceSession, sampling: Sampling, requests: list[AnswerRequest] = REQUESTS) -> list[str]:
    return [answer.text for answer in answered(session, sampling, requests)]


def by_transformers(model: ModelRef, sampling: Sampling) -> list[Answer]:
    with TransformersEngine(TransformersServing(), print).open("champion", model) as session:
        return answered(session, sampling)


def differ(left: list[Answer], right: list[Answer]) -> int:
    """Answers that differ, in anything but the time they took."""
    return sum(a.model_copy(update={"latency_s": b.latency_s}) != b for a, b in zip(left, right, strict=True))


def server_in(folder: Path) -> int:
    """The pid of the server that runs in a folder: it leads a session."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            pid, words = int(entry.name), (entry / "cmdline").read_bytes()
            own = (entry / "cwd").readlink() == folder and os.getsid(pid) == pid
            if own and b"vllm.entrypoints" in words and b"pipeline.core.processes" not in words:
                return pid
    raise AssertionError(f"no server runs in {folder}")


def test_one_answer_for_one_seed_at_1_and_16_in_flight(champion: InferenceSession) -> None:
    begun = time.monotonic()
    together = texts(champion, DRAWN)
    print(f"vllm: {len(REQUESTS) / (time.monotonic() - begun):.0f} answers/s at 16 in flight")
    assert [texts(champion, DRAWN, [request])[0] for request in REQUESTS] == together
    others = [request.model_copy(update={"seed": request.seed + 1}) for request in REQUESTS]
    assert sum(a != b for a, b in zip(texts(champion, DRAWN, others), together, strict=True)) > 5


def test_likeliest_answers_are_those_of_transformers(champion: InferenceSession) -> None:
    assert differ(answered(champion, GREEDY), by_transformers(model_ref(MODEL_DIR), GREEDY)) <= 1, "no near tie"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_draws_leave_the_likeliest_as_often_as_in_transformers(champion: InferenceSession, temperature: float) -> None:
    """On a CPU vLLM draws by random numbers of its own, so the texts differ; 48 answers have a deviation of 3.5."""
    sampling = DRAWN.model_copy(update={"temperature": temperature})

    def moved(session: InferenceSession) -> int:
        return sum(a != b for a, b in zip(texts(session, GREEDY), texts(session, sampling), strict=True))

    with TransformersEngine(TransformersServing(), print).open("champion", model_ref(MODEL_DIR)) as session:
        assert abs(moved(champion) - moved(session)) <= 10


def test_what_decides_is_on_record(champion: InferenceSession) -> None:
    decoding = champion.decoding
    assert (decoding.engine, decoding.device, decoding.dtype) == ("vllm", "cpu", "float32")
    assert (decoding.stop_ids, decoding.context, decoding.batch_invariant) == ((3,), 1024, False)
    assert decoding.version[0].isdigit() and "torch" in decoding.version


def test_a_prompt_beyond_the_context_is_refused(champion: InferenceSession) -> None:
    long = AnswerRequest(key="long", messages=[{"role": "user", "content": "a b " * 800}], seed=1)
    answers: list[Answer] = []
    champion.answer([long], DRAWN.model_copy(update={"skip_unanswerable": True}), answers.append)
    assert [answer.stop for answer in answers] == ["refused"] and "HTTP 400" in answers[0].detail


def test_the_server_wants_its_key(engine: VllmEngine, champion: InferenceSession) -> None:
    import httpx2

    assert champion is not None
    (log,) = engine.folder.glob("server-*.log")
    server = server_in(engine.folder)
    arguments = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in session_members(server))
    port = arguments.partition(b"--port\0")[2].partition(b"\0")[0].decode()
    answer = httpx2.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False)
    assert answer.status_code == 401
    key = Path(f"/proc/{server}/environ").read_bytes().partition(b"VLLM_API_KEY=")[2]
    assert (key := key.partition(b"\0")[0]) and key not in arguments and key.decode() not in log.read_text()


def test_a_killed_server_ends_in_words_and_leaves_no_process(python: Path, tmp_path: Path) -> None:
    """Its model ends answers at a token that only generation_config.json names, as it does in transformers, and is
    served in the precision of the other arm, which it was not saved in."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    tokens = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    for name, changed in (
        ("generation_config.json", {"eos_token_id": [3, tokens["="]], "top_k": 1}),
        ("config.json", {"dtype": "bfloat16"}),
    ):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    killed: list[int] = []

    def kill(answer: Answer) -> None:
        if not killed:
            killed.append(server_in(tmp_path / "vllm"))
            assert len(session_members(killed[0])) >= 3, "server, engine, worker"
            os.kill(killed[0], signal.SIGKILL)

    engine: InferenceEngine = VllmEngine(SERVING, python, tmp_path / "vllm", print)
    with ExitStack() as stack:
        session = stack.enter_context(engine.open("champion", model_ref(folder)))
        stopped = texts(session, DRAWN)
        assert (session.decoding.stop_ids, session.decoding.dtype) == ((3, tokens["="]), "float32")
        arguments = Path(f"/proc/{server_in(tmp_path / 'vllm')}/cmdline").read_bytes()
        assert b"--dtype\0float32\0" in arguments
        assert not [text for text in stopped if "=" in text] and len(set(stopped)) > 20
        with pytest.raises(RuntimeError, match=r"vLLM (stopped answering|ended while it was asked).*last lines"):
            session.answer(REQUESTS * 4, DRAWN, kill)
        wait_for(lambda: not session_members(killed[0]))


def test_a_killed_step_leaves_no_process(python: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", STEP, str(python), str(tmp_path), str(MODEL_DIR)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as step:
        assert step.stdout is not None
        assert any(line == "open\n" for line in step.stdout)
        server = server_in(tmp_path)
        assert len(session_members(server)) >= 3, "server, engine, worker"
        step.kill()
        wait_for(lambda: not session_members(server))
