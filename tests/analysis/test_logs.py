"""Curves and settings out of logs as programs print them."""

import json
import math
from functools import partial

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent2rl.analysis.attempts import PrintedText
from agent2rl.analysis.findings import EvidenceBook, PrintedCurve
from agent2rl.analysis.logs import MOST_CURVES, MOST_POINTS, extract_curves, extract_settings
from agent2rl.training.progress import TrainingProgressEntry
from tests.helpers.call_counter import count_calls


def read(text: str, name: str = "agent.log") -> dict[str, list[tuple[float, float | None]]]:
    """The curves of one text, by name; each name once."""
    found = extract_curves([PrintedText(name, text)])
    assert len({curve.name for curve in found}) == len(found)
    return {curve.name: list(curve.points) for curve in found}


def named(text: str, name: str) -> list[PrintedCurve]:
    return [curve for curve in extract_curves([PrintedText("agent.log", text)]) if curve.name == name]


BAR = "\r 10%|█         | {step}/100 [00:05<00:45,  2.00it/s]\r{blank}\r"

STYLES = {
    "dicts of a trainer": (
        (
            "{'loss': 1.5, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.1}\n"
            "{'loss': 1.25, 'grad_norm': 0.4, 'learning_rate': 9e-06, 'epoch': 0.2}\n"
            "{'train_runtime': 12.3, 'train_loss': 0.9, 'epoch': 3.0}\n"
        ),
        {
            "loss": [(1, 1.5), (2, 1.25)],
            "grad_norm": [(1, 0.5), (2, 0.4)],
            "learning_rate": [(1, 1e-05), (2, 9e-06)],
        },
    ),
    "dicts between the states of a progress bar": (
        BAR.format(step=10, blank=" " * 60)
        + "{'loss': '1.5', 'epoch': '0.1'}\n"
        + BAR.format(step=20, blank=" " * 60)
        + "{'loss': '1.25', 'epoch': '0.2'}\n",
        {"loss": [(10, 1.5), (20, 1.25)]},
    ),
    "JSON lines": (
        (
            '{"step": 200, "loss": 2.5, "seconds": 3.1, "tokens_per_second": 900}\n'
            '{"step": 400, "loss": 2.25, "seconds": 6.2, "tokens_per_second": 900}\n'
        ),
        {"loss": [(200, 2.5), (400, 2.25)]},
    ),
    "names and numbers": (
        "step 10 loss=1.2 reward 0.3\nstep 20 loss=1.1 reward 0.4\n",
        {"loss": [(10, 1.2), (20, 1.1)], "reward": [(10, 0.3), (20, 0.4)]},
    ),
    "a count in brackets": ("[12/100] loss: 0.12\n[13/100] loss: 0.11\n", {"loss": [(12, 0.12), (13, 0.11)]}),
    "epochs with steps of their own": (
        (
            "Epoch [1/2], Step [10/20], Loss: 0.5\nEpoch [1/2], Step [20/20], Loss: 0.4\n"
            "Epoch [2/2], Step [10/20], Loss: 0.3\n"
        ),
        {"loss": [(10, 0.5), (20, 0.4), (30, 0.3)]},
    ),
    "slashes and dashes": (
        (
            "step:10 - actor/pg_loss:0.1 - critic/score/mean:0.5 - actor/entropy:1.2 - actor/ppo_kl:0.01\n"
            "step:11 - actor/pg_loss:0.2 - critic/score/mean:0.6 - actor/entropy:1.1 - actor/ppo_kl:0.02\n"
        ),
        {
            "score": [(10, 0.5), (11, 0.6)],
            "kl": [(10, 0.01), (11, 0.02)],
            "entropy": [(10, 1.2), (11, 1.1)],
            "policy_loss": [(10, 0.1), (11, 0.2)],
        },
    ),
    "a progress bar's own words": (
        " 50%|███ | 50/100 [00:10<00:10, 5it/s, loss=0.5]\r 51%|███ | 51/100 [00:10<00:10, 5it/s, loss=0.4]",
        {"loss": [(50, 0.5), (51, 0.4)]},
    ),
    "two losses": (
        "iter 100: train loss 1.2, val loss 1.4\niter 200: train loss 1.1, val loss 1.3\n",
        {"loss": [(100, 1.2), (200, 1.1)], "eval_loss": [(100, 1.4), (200, 1.3)]},
    ),
    "a logger with dates, shares and tensors": (
        (
            "2026-01-01 10:00:00 INFO step=1 | avg reward: 0.1 | success rate: 3/10 | loss: tensor(0.12)\n"
            "2026-01-01 10:00:09 INFO step=2 | avg reward: 0.2 | success rate: 5/10 | loss: tensor(0.10)\n"
        ),
        {
            "loss": [(1, 0.12), (2, 0.10)],
            "reward": [(1, 0.1), (2, 0.2)],
            "success_rate": [(1, 0.3), (2, 0.5)],
        },
    ),
    "CSV": ("step,loss,seconds\n1,0.5,10\n2,0.4,20\n", {"loss": [(1, 0.5), (2, 0.4)]}),
    "a table": (
        "| Step | Training Loss | Validation Loss |\n|--|--|--|\n| 10 | 1.5 | 1.4 |\n| 20 | 1.2 | 1.3 |\n",
        {"loss": [(10, 1.5), (20, 1.2)], "eval_loss": [(10, 1.4), (20, 1.3)]},
    ),
    "columns": (
        "step   loss   reward\n1   0.5   0.1\n2   0.4   0.2\n",
        {
            "loss": [(1, 0.5), (2, 0.4)],
            "reward": [(1, 0.1), (2, 0.2)],
        },
    ),
    "the state of a trainer": (
        json.dumps(
            {
                "best_metric": None,
                "global_step": 20,
                "log_history": [
                    {"epoch": 0.1, "loss": 1.5, "step": 10},
                    {"epoch": 0.2, "loss": 1.25, "step": 20},
                ],
            },
            indent=2,
        ),
        {"loss": [(10, 1.5), (20, 1.25)]},
    ),
    "colours": (
        "\x1b[32mstep 1\x1b[0m loss: \x1b[1m0.5\x1b[0m\nstep 2 loss: 0.4\n",
        {"loss": [(1, 0.5), (2, 0.4)]},
    ),
    "output inside JSON": (
        json.dumps({"stdout": "step 1 loss: 0.5\nstep 2 loss: 0.4\n"}),
        {"loss": [(1, 0.5), (2, 0.4)]},
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_a_style_of_printing_is_read(style: str) -> None:
    text, wanted = STYLES[style]
    assert read(text) == wanted


def test_our_own_recipe_is_read_in_its_log_and_in_its_file_as_one() -> None:
    moments = [
        TrainingProgressEntry(
            stage=stage,
            step=step,
            seconds=1.0,
            loss=base / step,
            reward=reward,
            tokens_per_second=5,
            left_seconds=9,
        )
        for stage, base, reward in (("sft", 2, None), ("grpo", 1, 0.125))
        for step in (4, 8, 16)
    ]
    log = "\n".join([*map(str, moments), "1-sft: scored, score 12.5. It is the best so far."])
    file = "\n".join(moment.model_dump_json() for moment in moments)
    found = extract_curves([PrintedText("agent.log", log), PrintedText("code/progress.jsonl", file)])
    assert [curve.name for curve in found] == ["loss", "loss", "reward"]
    assert {tuple(step for step, _ in curve.points) for curve in found} == {(4, 8, 16)}
    assert found[2].points[0] == (4, 0.125)


def test_small_numbers_that_differ_are_different_curves() -> None:
    one = "".join(f"step {step} lr {step}e-5\n" for step in (1, 2, 3))
    other = one.replace("e-5", "e-6")
    assert len(extract_curves([PrintedText("code/a.log", one), PrintedText("code/b.log", other)])) == 2


def test_what_is_no_number_any_more_is_none() -> None:
    assert read("step 1 loss nan\nstep 2 loss: inf\nstep 3 loss=-Infinity\nstep 4 loss 1e999")["loss"] == [
        (1, None),
        (2, None),
        (3, None),
        (4, None),
    ]


def test_each_training_of_a_log_has_its_own_curve() -> None:
    one = "".join(f"step {step} loss {1 / step:.3f}\n" for step in range(1, 11))
    first, second = named(one + "now with a smaller rate\n" + one.replace("loss 0", "loss 5"), "loss")
    assert (first.where, second.where) == ("agent.log:1", "agent.log:12")
    assert len(first.points) == len(second.points) == 10


def test_a_log_that_is_looked_at_again_and_again_is_one_curve() -> None:
    lines = [f"step {step} loss {1 / step:.3f}" for step in range(1, 41)]
    looks = [PrintedText(f"agent.log line {end}", "\n".join(lines[end - 8 : end])) for end in (8, 14, 20, 40)]
    (curve,) = extract_curves(looks)
    assert [step for step, _ in curve.points] == [*range(1, 21), *range(33, 41)]


def test_a_training_that_goes_on_from_a_checkpoint_is_the_same() -> None:
    steps = [*range(10, 110, 10), *range(80, 160, 10)]
    assert len(named("".join(f"step {step} loss {step / 7}\n" for step in steps), "loss")) == 1


def test_a_long_curve_keeps_its_ends_its_extremes_and_its_gaps() -> None:
    values = [math.sin(step / 50) for step in range(5000)]
    values[1234], values[3210], values[2000] = 9.0, -9.0, math.nan
    (curve,) = extract_curves(
        [PrintedText("train.log", "".join(f"step {n} loss {v}\n" for n, v in enumerate(values)))]
    )
    assert len(curve.points) <= MOST_POINTS
    assert (curve.points[0][0], curve.points[-1][0]) == (0, 4999)
    assert {(1234.0, 9.0), (3210.0, -9.0), (2000.0, None)} <= set(curve.points)


def test_the_best_known_names_come_first_and_there_are_not_too_many() -> None:
    names = [f"rewards/check_{n}/mean" for n in range(40)]
    line = "{{'loss': {0}, {1}, 'reward': {0}, 'kl': {0}, 'step': {0}}}\n"
    text = "".join(line.format(step, ", ".join(f"'{name}': {step}" for name in names)) for step in (1, 2, 3))
    found = [curve.name for curve in extract_curves([PrintedText("agent.log", text)])]
    assert found[:3] == ["loss", "reward", "kl"]
    assert len(found) == MOST_CURVES


@pytest.mark.parametrize(
    "text",
    [
        "The score 45.2 was good, and the accuracy: 45.2\nThe score 46.2 is better, accuracy: 46\n",
        "    loss = 0.0\n    loss = 0.0\n    total_loss = 0\n",
        "1-sft: scored, score 12.5. fine\n2-grpo: scored, score 13.5. fine\n",
        "Map: 100%|██████████| 500/500 [00:00<00:00, 5000 examples/s]\n" * 3,
        '{"submission_id": 1, "score": 12.5, "verdict": "scored", "baseline_score": 12.0}\n' * 3,
        '{"accuracy": 0.5}\n{"accuracy": 0.75}\n',
        '{\n  "rms_norm_eps": 1e-06,\n  "vocab_size": 100\n}\n' * 3,
        "the loss is 5 dollars\nthe loss is 6 dollars\n",
    ],
)
def test_prose_and_code_are_no_curves(text: str) -> None:
    assert read(text) == {}


def told(text: str) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for each in extract_settings([PrintedText("agent.log", text)], EvidenceBook()):
        found.setdefault(each.name, []).append(each.value)
    return found


def test_the_settings_of_a_trainer_are_read() -> None:
    assert told(
        "***** Running training *****\n  Num examples = 1,500\n  Num Epochs = 3\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 32\n"
        "  Gradient Accumulation steps = 4\n  Total optimization steps = 48\n"
        "TrainingArguments(\nlearning_rate=5e-05,\nlr_scheduler_type=SchedulerType.LINEAR,\n"
        "optim=OptimizerNames.ADAMW_TORCH,\nseed=42,\n)\n"
    ) == {
        "examples": [1500],
        "epochs": [3],
        "batch_size": [8],
        "total_batch_size": [32],
        "gradient_accumulation": [4],
        "steps": [48],
        "learning_rate": [5e-05],
        "schedule": ["linear"],
        "optimizer": ["adamw_torch"],
        "seed": [42],
    }


def test_settings_are_read_in_other_styles_and_by_one_name() -> None:
    assert told(
        "python train.py --lr 1e-5 --num_generations=8 --beta 0.04\n"
        '{"model_name_or_path": "models/base", "dataset": "data/train.jsonl", "temperature": 0.7}\n'
        "lora_r: 16, lora_alpha: 32\ngrpo: 4 a step, rate 3.0e-05\n"
    ) == {
        "learning_rate": [1e-05, 3e-05],
        "group_size": [8],
        "beta": [0.04],
        "model": ["models/base"],
        "data": ["data/train.jsonl"],
        "temperature": [0.7],
        "lora_rank": [16],
        "lora_alpha": [32],
    }


def test_a_moment_of_a_training_and_a_program_are_no_settings() -> None:
    assert told(
        "{'loss': 1.2, 'learning_rate': 9e-06, 'epoch': 0.1}\n"
        "the success rate 0.5 is low\noptimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)\n"
        "def train(lr: float, model: str, data=None):\n"
    ) == {"optimizer": ["adamw"]}


def test_a_setting_cites_the_line_that_told_it() -> None:
    book = EvidenceBook()
    (found,) = extract_settings(
        [PrintedText("code/train.log", "hello\nlearning_rate: 1e-5\n", first_line=7)], book
    )
    (piece,) = book.pieces
    assert found.evidence == (piece.id,)
    assert (piece.where, piece.text) == ("code/train.log:8", "learning_rate: 1e-5")


NOISE = st.text(
    st.sampled_from("step loss=reward:nan0123456789.,-+e{}[]'\"|/\\\n\r\t\x00\x1b[;lr\u2028é%<>_")
)


@hypothesis.settings(max_examples=60)
@given(NOISE | st.text())
def test_any_text_is_read_and_the_same_way_twice(text: str) -> None:
    printed = [PrintedText("agent.log", text), PrintedText("code/a.log", text[::-1])]
    found = extract_curves(printed)
    assert found == extract_curves([PrintedText(each.name, each.text) for each in printed])
    assert all(value is None or math.isfinite(value) for curve in found for _, value in curve.points)
    one, other = EvidenceBook(), EvidenceBook()
    assert extract_settings(printed, one) == extract_settings(printed, other)
    assert one.pieces == other.pieces


@pytest.mark.timeout(120)  # a regex that takes quadratic time is not done by then
@pytest.mark.parametrize(
    "unit",
    [
        "loss: ",
        "lr=\n",
        "1",
        "|",
        "{\n",
        "loss=1\r",
        "\\n",
        "\x1b[",
        "\x1b]",
        "step,loss\n",
        "- ",
        "nan ",
        "\x00",
    ],
)
def test_work_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    def extract(size: int) -> None:
        printed = [PrintedText("agent.log", unit * (size // len(unit)))]
        extract_curves(printed)
        extract_settings(printed, EvidenceBook())

    few, many = (count_calls(partial(extract, size)) for size in (5_000, 40_000))
    assert many < 12 * few
    extract(400_000)
