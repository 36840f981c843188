"""AlpacaEval in miniature: generated instructions, the same evaluator, and a judge that is a rule.

An instruction gives two facts about somebody and asks about one. Its answer has all qualities of the
rubric, its reference lacks one. Which name goes with which value belongs to one split. Difficulties have
the form of the official df_gamed.csv.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from pydantic import JsonValue

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, Splits, Task
from agent2rl.evaluators import scorers
from agent2rl.evaluators.judge import AnswerComparison, RefereePreference, RuleReferee
from agent2rl.evaluators.pairwise import FILE, FOLDER, Pairwise
from agent2rl.evaluators.single_turn import QuestionPrompt
from agent2rl.evaluators.win_rates import COLUMNS, require_sklearn
from agent2rl.tasks.alpacaeval import EVALUATOR
from agent2rl.tasks.alpacaeval import TASK as ALPACAEVAL

# Generates the miniature's instructions: two facts about somebody, a question about one, and how to
# answer.

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")
SHARES: dict[Part, range] = {"train": range(4), "feedback": range(4, 6), "heldout": range(6, 8)}
"""Which eighths of all pairs of a name and a value belong to a split."""

NAMES = ("Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia")
TOWNS = ("Alton", "Brook", "Carlow", "Dover", "Elm", "Ford", "Gale", "Hill", "Kent", "Lake", "March", "Stone")


class FactKind(NamedTuple):
    """A fact that can be asked for."""

    told: str
    asked: str
    english: str
    german: str
    values: Sequence[str]


KINDS = (
    FactKind(
        "{name} lives in {v}.", "Where does {name} live?", "{name} lives in {v}", "{name} wohnt in {v}", TOWNS
    ),
    FactKind(
        "{name} works with {v}.",
        "Who does {name} work with?",
        "{name} works with {v}",
        "{name} arbeitet mit {v}",
        NAMES,
    ),
    FactKind(
        "{name} is {v} years old.",
        "How old is {name}?",
        "{name} is {v} years old",
        "{name} ist {v} Jahre alt",
        tuple(str(age) for age in range(12, 80)),
    ),
    FactKind(
        "{name} was born in {v}.",
        "When was {name} born?",
        "{name} was born in {v}",
        "{name} kam {v} zur Welt",
        tuple(str(year) for year in range(1930, 2010)),
    ),
)
LANGUAGES = {"English": "", "German": "Answer in German."}
LENGTHS = {
    "1 sentences": "Write one sentence.",
    "2 sentences": "Write two sentences.",
    "6 words": "Use at most six words.",
}
FORMS = {
    "plain": "",
    "capitals": "Use capital letters.",
    "dash": "Begin with a dash.",
    "quotes": "Put it in quotes.",
}
SECOND = {"English": "That is it", "German": "Das ist so"}
OTHER = {"English": "German", "German": "English"}


def generate_instructions(split: Part, count: int) -> tuple[Example, ...]:
    """The first `count` of a split, no two alike; kinds, languages, lengths and forms take turns."""
    dice = random.Random(f"alpacaeval-mini:{split}")
    ways = [(language, length, form) for language in LANGUAGES for length in LENGTHS for form in FORMS]
    found: dict[str, Example] = {}
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        way = ways[len(found) // len(KINDS) % len(ways)]
        name, value = _draw_name_and_value(dice, kind, split)
        other = _pick_one(dice, [one for one in KINDS if one is not kind])
        beside = _pick_one(dice, [one for one in other.values if one not in (name, value)])
        prompt = _write_prompt(dice, (kind, value), (other, beside), name, way)
        others = [one for one in (beside, *kind.values) if one not in (name, value) and not one.isdigit()]
        meta: dict[str, JsonValue] = {"value": value, "others": [*dict.fromkeys(others)]}
        meta |= dict(zip(("language", "length", "form"), way, strict=True))
        meta["reference"] = _write_answer(kind, name, value, _change_one_quality(dice, way))
        answer = _write_answer(kind, name, value, way)
        found.setdefault(prompt, Example(f"alpacaeval-mini-{split}-{len(found):04d}", prompt, answer, meta))
    return tuple(found.values())


def _draw_name_and_value(dice: random.Random, kind: FactKind, split: Part) -> tuple[str, str]:
    while True:
        name = _pick_one(dice, NAMES)
        value = _pick_one(dice, [one for one in kind.values if one != name])
        if hashlib.sha256(f"{name} {value}".encode()).digest()[0] % 8 in SHARES[split]:
            return name, value


def _write_prompt(
    dice: random.Random,
    wanted: tuple[FactKind, str],
    beside: tuple[FactKind, str],
    name: str,
    way: tuple[str, str, str],
) -> str:
    facts = [kind.told.format(name=name, v=value) for kind, value in (wanted, beside)]
    if dice.random() < 0.5:
        facts.reverse()
    language, length, form = way
    how = [LANGUAGES[language], LENGTHS[length], FORMS[form]]
    return " ".join([*facts, wanted[0].asked.format(name=name), *filter(None, how)])


def _write_answer(kind: FactKind, name: str, value: str, way: tuple[str, str, str]) -> str:
    language, length, form = way
    text = (kind.english if language == "English" else kind.german).format(name=name, v=value) + "."
    if length.startswith("2"):
        text += f" {SECOND[language]}."
    return {"plain": text, "capitals": text.upper(), "dash": f"- {text}", "quotes": f'"{text}"'}[form]


def _change_one_quality(dice: random.Random, way: tuple[str, str, str]) -> tuple[str, str, str]:
    """Another way to say it, which is not the one that was asked for in one respect."""
    language, length, form = way
    place = int(dice.random() * 3)
    if place == 0:
        return OTHER[language], length, form
    if place == 1:  # two sentences have more than six words, or are more than one
        return language, "1 sentences" if length.startswith("2") else "2 sentences", form
    return language, length, _pick_one(dice, [one for one in FORMS if one != form])


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """By `random()`, the only method whose numbers every Python promises to keep."""
    return choices[int(dice.random() * len(choices))]


# What length control knows of the miniature's instructions, in the form of the official df_gamed.csv.

USUAL = {"language": next(iter(LANGUAGES)), "length": next(iter(LENGTHS)), "form": "plain"}
RULE = RuleReferee(scorers.RUBRIC_NAME, scorers.score_by_rubric)


def write_difficulties(examples: Sequence[Example]) -> str:
    """A row for each example and anchor; an example's number is its `row`."""
    rows = [",".join(COLUMNS)]
    for anchor in (_write_verbose_answer, _write_concise_answer):
        pairs = [AnswerComparison(one, anchor(one), str(one.meta["reference"])) for one in examples]
        shorter = [len(pair.reference) - len(pair.output) for pair in pairs]
        spread = _standard_deviation(shorter)
        for pair, by, said in zip(pairs, shorter, RULE.prefer(pairs, seed=0), strict=True):
            assert isinstance(said, RefereePreference), "a rule always says something"
            rows.append(
                f"{pair.example.meta['row']},{said.share},{by / spread},{_rate_difficulty(pair.example)}"
            )
    return "\n".join(rows) + "\n"


def _write_verbose_answer(one: Example) -> str:
    """In the reference's form; not each as often as the others, or their lengths would have no spread."""
    text = str(one.meta["reference"])
    said = text.strip('"').removeprefix("- ")
    return text.replace(said, " ".join([said] * (2 + int(str(one.meta["row"])) % 3)))


def _write_concise_answer(one: Example) -> str:
    return f"{one.meta['value']}."


def _rate_difficulty(one: Example) -> float:
    """From -1 to 1."""
    return sum(one.meta[name] != usual for name, usual in USUAL.items()) / 1.5 - 1


def _standard_deviation(values: Sequence[int]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) or 1.0


def load(data_dir: Path | None) -> Splits:
    if data_dir is not None:
        raise UserError("alpacaeval-mini is generated and reads no files.", "Leave out --data-dir.")
    require_sklearn()
    feedback, heldout = generate_instructions("feedback", 150), generate_instructions("heldout", 150)
    numbered = [replace(one, meta={**one.meta, "row": row}) for row, one in enumerate((*feedback, *heldout))]
    return Splits(
        generate_instructions("train", 2000),
        tuple(numbered[: len(feedback)]),
        tuple(numbered[len(feedback) :]),
        beside={FOLDER: lambda place: _write_difficulties_file(numbered, place)},
    )


def _write_difficulties_file(numbered: Sequence[Example], place: Path) -> None:
    (place / FILE).write_text(write_difficulties(numbered), encoding="utf-8")


def get_reference(example: Example) -> str:
    return str(example.meta["reference"])


TASK: Task = replace(
    ALPACAEVAL,
    id="alpacaeval-mini",
    description=Path(__file__).with_name("mini.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=Pairwise(
        rule=f"alpacaeval-mini-2-{scorers.RUBRIC_NAME}",
        reference=get_reference,
        asking=QuestionPrompt(
            plain="Instruction: {question}\nAnswer:", stop=("\n",), sampling=Sampling(max_tokens=48)
        ),
        referee=RULE,
        group="form",
        constants=EVALUATOR.constants,
    ),
    judged=False,
    published=None,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
)
