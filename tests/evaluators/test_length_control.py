"""Win rates from a judge's preferences: the published figures of ten models, and what length control does."""

import csv
import gzip
import json
import lzma
import math
import random
from pathlib import Path

import pytest

from agent2rl.core.errors import GradingError, UserError
from agent2rl.evaluators.win_rates import (
    ComparedPair,
    InstructionDifficulties,
    compute_mean_percent,
    compute_win_rates,
    control_length,
)

pytest.importorskip("sklearn", reason="length control needs agent2rl[judge]")

MODELS = (
    "FuseChat-Llama-3.1-8B-Instruct",
    "NullModel",
    "claude-2",
    "falcon-7b-instruct",
    "gpt-3.5-turbo-1106",
    *(
        pytest.param(model, marks=pytest.mark.thorough)  # between those above in everything
        for model in ("Qwen-14B-Chat", "alpaca-7b", "gemma-2b-it", "phi-2", "vicuna-7b")
    ),
)
INSTRUCTIONS = 120


@pytest.fixture(scope="module")
def official(shared_data: Path) -> Path:
    return shared_data / "alpacaeval"


@pytest.fixture(scope="module")
def references(official: Path) -> dict[str, str]:
    rows = json.loads(lzma.decompress((official / "gpt4_1106_preview.outputs.json.xz").read_bytes()))
    return {row["instruction"]: row["output"] for row in rows}


@pytest.fixture(scope="module")
def published(official: Path) -> dict[str, dict[str, str]]:
    with (official / "leaderboard.csv").open(encoding="utf-8") as file:
        return {row[""]: row for row in csv.DictReader(file)}


@pytest.fixture(scope="module")
def estimated(official: Path) -> InstructionDifficulties:
    return InstructionDifficulties.from_csv(official / "df_gamed.RECONSTRUCTED.csv")


@pytest.mark.parametrize("model", MODELS)
def test_the_figures_of_the_leaderboard_come_out(
    model: str,
    official: Path,
    references: dict[str, str],
    published: dict[str, dict[str, str]],
    estimated: InstructionDifficulties,
) -> None:
    found = compute_win_rates(official / "annotations" / f"{model}.json.xz", references, estimated)
    row = published[model]
    assert found.n == int(row["n_total"])
    assert found.win_rate == pytest.approx(float(row["win_rate"]), abs=1e-6)
    assert found.standard_error == pytest.approx(float(row["standard_error"]), abs=1e-6)
    assert found.length_controlled == pytest.approx(float(row["length_controlled_winrate"]), abs=0.3)
    if row["lc_standard_error"]:  # most were published without; the difficulties are estimates
        assert found.length_controlled_error == pytest.approx(float(row["lc_standard_error"]), abs=0.1)


def difficulties(tmp_path: Path, slope: float = -2.0) -> InstructionDifficulties:
    """Two anchors that win by being long, and lose by being short."""
    dice = random.Random(0)
    lines = ["index,preference,std_delta_len,instruction_difficulty,not_gamed_baseline,model"]
    hard = [dice.gauss(0, 1) for _ in range(INSTRUCTIONS)]
    for name, middle in (("verbose", -1.0), ("concise", 1.0)):
        for index in range(INSTRUCTIONS):
            shorter = dice.gauss(middle, 0.5)
            share = 1 / (1 + math.exp(-slope * math.tanh(shorter)))
            lines.append(f"{index},{share},{shorter},{hard[index]},False,{name}")
    path = tmp_path / "df_gamed.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return InstructionDifficulties.from_csv(path)


def padded(spread: float) -> list[ComparedPair]:
    """A model that is as good as the reference and longer, judged by one who likes length."""
    dice = random.Random(1)
    shorter = [int(dice.gauss(-800, 800 * spread)) for _ in range(INSTRUCTIONS)]
    return [ComparedPair(1 / (1 + math.exp(by / 400)), by, row) for row, by in enumerate(shorter)]


def test_what_length_alone_has_won_is_taken_back(tmp_path: Path) -> None:
    pairs = padded(1.0)
    raw, _ = compute_mean_percent([pair.preference for pair in pairs])
    value, _ = compute_mean_percent(control_length(pairs, difficulties(tmp_path)).expected)
    assert raw > 70
    assert value == pytest.approx(50, abs=6)


def test_what_was_seen_is_what_is_expected_at_its_length_and_the_rest(tmp_path: Path) -> None:
    pairs = padded(1.0)
    found = control_length(pairs, difficulties(tmp_path))
    assert abs(float(found.residual.mean())) < 0.01, "the model's own weight takes the mean up"
    assert found.weights[0] < -1, "being shorter loses"


def annotated(count: int) -> list[dict[str, object]]:
    dice = random.Random(2)
    return [
        {"instruction": f"Say {n}.", "output_2": "x" * dice.randrange(90), "preference": 1 + dice.random()}
        for n in range(count)
    ]


def test_rows_in_any_order_and_however_packed_come_to_the_same(tmp_path: Path) -> None:
    rows, known = annotated(INSTRUCTIONS), difficulties(tmp_path)
    references = {f"Say {n}.": "y" * 40 for n in range(INSTRUCTIONS)}
    plain, shuffled = tmp_path / "a.json", tmp_path / "b.json"
    plain.write_text(json.dumps(rows), encoding="utf-8")
    shuffled.write_bytes(gzip.compress(json.dumps(rows[::-1]).encode()))
    found = compute_win_rates(plain, references, known)
    assert compute_win_rates(shuffled, references, known).length_controlled == pytest.approx(
        found.length_controlled
    )
    plain.write_text(json.dumps(rows[2:]), encoding="utf-8")
    assert compute_win_rates(plain, references, None).absent == 2
    rows[3]["instruction"] = "Say what?"
    plain.write_text(json.dumps(rows), encoding="utf-8")
    with pytest.raises(UserError, match="not an official instruction"):
        compute_win_rates(plain, references, known)


def test_preferences_that_cannot_be_one_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "annotations.json"
    rows = annotated(20)
    for wrong, says in (
        ([*rows, rows[3]], "2 entries for 'Say 3.'"),
        ([{**rows[0], "generator_2": "me"}, *rows[1:]], "mixes models"),
    ):
        path.write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(UserError, match=says):
            compute_win_rates(path, {}, None)
    whole = gzip.compress(json.dumps(rows).encode())
    for half in (whole[:200], lzma.compress(json.dumps(rows).encode())[:200], whole[:30] + whole[60:]):
        path.write_bytes(half)
        with pytest.raises(UserError, match="is not JSON"):
            compute_win_rates(path, {}, None)


@pytest.mark.parametrize(("share", "near"), [(1.0, 100), (0.0, 0), (0.5, 50)])
def test_a_model_that_always_wins_or_never_has_a_rate_all_the_same(
    share: float, near: float, tmp_path: Path
) -> None:
    pairs = [
        ComparedPair(share, by, row) for row, by in enumerate(random.Random(3).sample(range(-900, 900), 120))
    ]
    found = control_length(pairs, difficulties(tmp_path))
    assert compute_mean_percent(found.expected)[0] == pytest.approx(near, abs=3)
    assert all(math.isfinite(value) for value in (*found.expected, *found.residual, *found.weights))


def test_a_tie_is_half_a_win_and_a_failed_comparison_is_none(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"{n}", "output_1": "x", "output_2": "y", "preference": worth, "generator_2": "me"}
        for n, worth in enumerate((0.0, 1.5, 2.0, 1.0, None, math.nan))
    ]
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    found = compute_win_rates(path, {}, None)
    assert (found.model, found.n, found.missing, found.win_rate) == ("me", 4, 2, 50.0)
    assert found.length_controlled is None


def test_few_or_equal_lengths_are_an_error_and_no_number(tmp_path: Path) -> None:
    known = difficulties(tmp_path)
    with pytest.raises(GradingError, match="fewer than 10"):
        control_length(padded(1.0)[:9], known)
    with pytest.raises(GradingError, match="same length"):
        control_length([ComparedPair(0.5, 3, row) for row in range(20)], known)
    with pytest.raises(GradingError, match="without a difficulty"):
        control_length([ComparedPair(0.5, row, row + 110) for row in range(20)], known)


def test_too_few_preferences_to_control_length_by_have_a_raw_rate_all_the_same(tmp_path: Path) -> None:
    rows = annotated(9)
    path = tmp_path / "annotations.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    references = {str(row["instruction"]): "a reference" for row in rows}
    found = compute_win_rates(path, references, difficulties(tmp_path))
    assert found.n == 9
    assert found.length_controlled is None
    assert "fewer than 10" in found.difficulties


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "is not JSON"),
        ('{"instruction": "a"}', "list"),
        ('[{"instruction": "a", "output_2": "b", "preference": 3}]', r"0\.preference"),
        ("[]", "fewer than two"),
    ],
)
def test_a_file_in_another_format_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "annotations.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=says):
        compute_win_rates(path, {}, None)


def test_difficulties_that_are_none_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "df_gamed.csv"
    path.write_text("index,preference\n0,1\n", encoding="utf-8")
    with pytest.raises(UserError, match="instruction_difficulty"):
        InstructionDifficulties.from_csv(path)
    path.write_text(
        "index,preference,std_delta_len,instruction_difficulty\n1,0.5,0.1,0.2\n", encoding="utf-8"
    )
    with pytest.raises(UserError, match="every instruction"):
        InstructionDifficulties.from_csv(path)
