"""Output lines to rows: NeMo RL's own words, as seed 003 shows them, validations, and lines nobody knows."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.nemo.output import Output, Row, begins

STEP = """\
========================= Step 100/100 =========================
▶ Preparing batch...
📊 Validation Results:
    • Accuracy: 0.6250
    • Average response length: 903.0 tokens
    • Samples processed: 512

  ⏱️  Validation Timing:
    • Total validation time: 24.44s
Saving checkpoint for step 100...
(DTensorPolicyWorkerV2[rank=0] pid=262448, ip=10.4.1.6) Saving tokenizer (or processor) to /data/tmp_step_100
Logged data to logs/exp_002/train_data_step99.jsonl

📊 Training Results:
  • Loss: 0.0351
  • Generation KL Error: 0.0012
  • Avg Reward: 0.2407
  • Mean Generation Length: 903.4531

⏱️  Timing:
  • Total step time: 122.87s
  • generation: 39.05s (31.8%)
  • checkpointing: 21.48s (17.5%)
  • policy_training: 16.89s (13.7%)
  • policy_and_reference_logprobs: 7.74s (6.3%)
  • prepare_for_generation/total: 3.25s (2.6%)
  • reward_calculation: 0.03s (0.0%)

🔍 Performance Metrics:
  • Mean Total Tokens per Sample: 906.36
  • Throughputs (per GPU):
    - E2E (Samples/sec/gpu): 1.04
    - E2E (Tokens/sec/gpu): 1087.21
    - Generation Worker Group (Tokens/sec/gpu): 3420.66
  • Throughputs (per Group):
    - E2E (Tokens/sec): 17395.32
  • Training FLOPS: 5864.40 TFLOPS (366.53 TFLOPS per rank)
  • Training Model Floating Point Utilization: 16.29%
"""


def read(text: str, step: int = 0) -> list[Row]:
    output = Output(step)
    rows = [*map(output.read, text.splitlines(keepends=True)), output.flush()]
    return [row for row in rows if row is not None]


def test_a_step_of_nemo_rl_becomes_a_row() -> None:
    (row,) = read(STEP, step=99)
    assert row == {
        "step": 100,
        "loss": 0.0351,
        "reward": 0.2407,
        "accuracy": 0.2407,
        "completions/mean_length": 903.4531,
        "held_out/accuracy": 0.625,
        "held_out/length": 903.0,
        "seconds/step": 122.87 - 21.48 - 24.44,
        "seconds/generate": 39.05,
        "seconds/save": 21.48,
        "seconds/update": 16.89,
        "seconds/logprobs": 7.74,
        "seconds/reward": 0.03,
        "seconds/validation": 24.44,
        "tokens_per_s_per_device": 1087.21,
        "tokens_per_s": 17395.32,
        "mfu": 0.1629,
    }


def test_steps_are_counted_from_where_the_training_resumes() -> None:
    assert [row["step"] for row in read(STEP * 3, step=40)] == [41, 42, 43]


def test_a_step_that_was_not_finished_is_no_row() -> None:
    assert not read("=== Step 1/9 ===\n▶ Preparing batch...\n")
    once_more = "=== Step 1/9 ===\n▶ Computing advantages...\n" * 3  # dynamic sampling draws again
    assert [row["step"] for row in read(once_more + STEP)] == [1]


def test_what_the_base_model_can_do_is_the_row_of_step_0() -> None:
    before = "▶ Starting validation at step 0...\n📊 Validation Results:\n    • Accuracy: 0.2500\n"
    rows = read(before + STEP)
    assert rows[0] == {"step": 0, "held_out/accuracy": 0.25} and rows[1]["step"] == 1
    assert begins(before.splitlines()[0]) and begins(STEP.splitlines()[0]) and not begins("▶ Setting up model...")


@given(st.lists(st.text(), max_size=30), st.integers(0, 100))
def test_no_line_whatever_stops_a_training(lines: list[str], step: int) -> None:
    output = Output(step)
    for line in lines:
        output.read(line)
    assert output.step >= step
