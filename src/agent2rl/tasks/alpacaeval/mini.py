"""AlpacaEval in miniature: generated instructions, the same evaluator, and a rule as the judge.

An instruction gives two facts about a person and asks about one. Its answer has all qualities of the rubric,
its reference lacks one. Each pair of a name and a value belongs to one split. Difficulties have the format of
the official df_gamed.csv.
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
from agent2rl.evaluators.judge import AnswerComparison, RankingReferee, RefereePreference, RuleReferee
from agent2rl.evaluators.pairwise import FILE, FOLDER, Pairwise
from agent2rl.evaluators.single_turn import QuestionPrompt
from agent2rl.evaluators.win_rates import COLUMNS, require_sklearn
from agent2rl.tasks.alpacaeval import EVALUATOR
from agent2rl.tasks.alpacaeval import TASK as ALPACAEVAL
from agent2rl.tasks.alpacaeval.paper import PAPER

# Generating the instructions: two facts about a person, a question about one, and how to answer

Part = Literal["train", "feedback", "heldout"]
T = TypeVar("T")
SHARES: dict[Part, range] = {"train": range(4), "feedback": range(4, 6), "heldout": range(6, 8)}
"""Split → its eighths of all pairs of a name and a value."""

NAMES = ("Ada", "Ben", "Carla", "Dan", "Eva", "Finn", "Grace", "Hugo", "Ida", "Jon", "Kim", "Leo", "Mia")
TOWNS = ("Alton", "Brook", "Carlow", "Dover", "Elm", "Ford", "Gale", "Hill", "Kent", "Lake", "March", "Stone")


class FactKind(NamedTuple):
    """A kind of fact that can be asked about."""

    statement: str
    question: str
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
    """Generate the first `count` of a split, all different; kinds, languages, lengths and forms alternate."""
    dice = random.Random(f"alpacaeval-mini:{split}")
    ways = [(language, length, form) for language in LANGUAGES for length in LENGTHS for form in FORMS]
    examples: dict[str, Example] = {}
    while len(examples) < count:
        kind = KINDS[len(examples) % len(KINDS)]
        way = ways[len(examples) // len(KINDS) % len(ways)]
        name, value = _draw_name_and_value(dice, kind, split)
        other_kind = _pick_one(dice, [candidate for candidate in KINDS if candidate is not kind])
        other = _pick_one(dice, [text for text in other_kind.values if text not in (name, value)])
        prompt = _write_prompt(dice, (kind, value), (other_kind, other), name, way)
        others = [text for text in (other, *kind.values) if text not in (name, value) and not text.isdigit()]
        meta: dict[str, JsonValue] = {"value": value, "others": [*dict.fromkeys(others)]}
        meta |= dict(zip(("language", "length", "form"), way, strict=True))
        meta["reference"] = _write_answer(kind, name, value, _change_one_quality(dice, way))
        answer = _write_answer(kind, name, value, way)
        example_id = f"alpacaeval-mini-{split}-{len(examples):04d}"
        examples.setdefault(prompt, Example(example_id, prompt, answer, meta))
    return tuple(examples.values())


def _draw_name_and_value(dice: random.Random, kind: FactKind, split: Part) -> tuple[str, str]:
    while True:
        name = _pick_one(dice, NAMES)
        value = _pick_one(dice, [text for text in kind.values if text != name])
        if hashlib.sha256(f"{name} {value}".encode()).digest()[0] % 8 in SHARES[split]:
            return name, value


def _write_prompt(
    dice: random.Random,
    requested: tuple[FactKind, str],
    other: tuple[FactKind, str],
    name: str,
    way: tuple[str, str, str],
) -> str:
    facts = [kind.statement.format(name=name, v=value) for kind, value in (requested, other)]
    if dice.random() < 0.5:
        facts.reverse()
    language, length, form = way
    requirements = [LANGUAGES[language], LENGTHS[length], FORMS[form]]
    return " ".join([*facts, requested[0].question.format(name=name), *filter(None, requirements)])


def _write_answer(kind: FactKind, name: str, value: str, way: tuple[str, str, str]) -> str:
    language, length, form = way
    text = (kind.english if language == "English" else kind.german).format(name=name, v=value) + "."
    if length.startswith("2"):
        text += f" {SECOND[language]}."
    return {"plain": text, "capitals": text.upper(), "dash": f"- {text}", "quotes": f'"{text}"'}[form]


def _change_one_quality(dice: random.Random, way: tuple[str, str, str]) -> tuple[str, str, str]:
    """Return a way to answer that breaks one of the three requirements."""
    language, length, form = way
    changed = int(dice.random() * 3)
    if changed == 0:
        return OTHER[language], length, form
    if changed == 1:  # two sentences break both "one sentence" and "at most six words"
        return language, "1 sentences" if length.startswith("2") else "2 sentences", form
    return language, length, _pick_one(dice, [other for other in FORMS if other != form])


def _pick_one(dice: random.Random, choices: Sequence[T]) -> T:
    """Pick a value with `random()`, the only method with the same numbers in every Python version."""
    return choices[int(dice.random() * len(choices))]


# Difficulties for length control, in the format of the official df_gamed.csv

USUAL = {"language": next(iter(LANGUAGES)), "length": next(iter(LENGTHS)), "form": "plain"}
RULE = RuleReferee(scorers.RUBRIC_NAME, scorers.score_by_rubric)


def write_difficulties(examples: Sequence[Example]) -> str:
    """Write a row for each example and anchor; an example's number is its `row`."""
    rows = [",".join(COLUMNS)]
    for anchor in (_write_verbose_answer, _write_concise_answer):
        pairs = [AnswerComparison(one, anchor(one), str(one.meta["reference"])) for one in examples]
        shorter = [len(pair.reference) - len(pair.output) for pair in pairs]
        spread = _standard_deviation(shorter)
        for pair, by, preference in zip(pairs, shorter, RULE.prefer(pairs, seed=0), strict=True):
            assert isinstance(preference, RefereePreference), "a rule always has a preference"
            difficulty = _rate_difficulty(pair.example)
            rows.append(f"{pair.example.meta['row']},{preference.share},{by / spread},{difficulty}")
    return "\n".join(rows) + "\n"


def _write_verbose_answer(example: Example) -> str:
    """Repeat the reference in its form, a varying number of times so that the lengths have a spread."""
    text = str(example.meta["reference"])
    content = text.strip('"').removeprefix("- ")
    return text.replace(content, " ".join([content] * (2 + int(str(example.meta["row"])) % 3)))


def _write_concise_answer(example: Example) -> str:
    return f"{example.meta['value']}."


def _rate_difficulty(example: Example) -> float:
    """Rate an example from -1 to 1."""
    return sum(example.meta[name] != usual for name, usual in USUAL.items()) / 1.5 - 1


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
        evaluator_folders={FOLDER: lambda folder: _write_difficulties_file(numbered, folder)},
    )


def _write_difficulties_file(numbered: Sequence[Example], folder: Path) -> None:
    (folder / FILE).write_text(write_difficulties(numbered), encoding="utf-8")


def get_reference(example: Example) -> str:
    return str(example.meta["reference"])


MINI_EVALUATOR = Pairwise(
    rule=f"alpacaeval-mini-2-{scorers.RUBRIC_NAME}",
    reference=get_reference,
    prompt=QuestionPrompt(
        plain="Instruction: {question}\nAnswer:", stop=("\n",), sampling=Sampling(max_tokens=48)
    ),
    referee=RULE,
    group="form",
    constants=EVALUATOR.constants,
)
"""Without a judge, a rule compares the answers."""

TASK: Task = replace(
    ALPACAEVAL,
    id="alpacaeval-mini",
    description=Path(__file__).with_name("mini.md").read_text(encoding="utf-8"),
    load=load,
    evaluator=MINI_EVALUATOR,
    judged=False,
    published=None,
    exposes={"eval.py": Path(__file__).with_name("eval.py")},
    paper=replace(
        PAPER,
        evaluator=replace(
            MINI_EVALUATOR,
            rule=f"paper-{MINI_EVALUATOR.rule}",
            prompt=QuestionPrompt(sampling=Sampling(max_tokens=512)),
            judge=RankingReferee,
        ),
    ),
)
