"""What length control knows of the miniature's instructions, in the form of the official df_gamed.csv.

An instruction is the more difficult the more it asks for. The anchors, which differ from the reference in
length, say the same as the reference again and again, or nothing but the value; what they win is what the
rubric gives them.
"""

import math
from collections.abc import Sequence

from agent2rl.core.task import Example
from agent2rl.evaluators import rubric
from agent2rl.evaluators.length_control import COLUMNS
from agent2rl.evaluators.referees import AnswerComparison, RefereePreference, RuleReferee
from agent2rl.tasks.alpacaeval.mini_instructions import LANGUAGES, LENGTHS

USUAL = {"language": next(iter(LANGUAGES)), "length": next(iter(LENGTHS)), "form": "plain"}
RULE = RuleReferee(rubric.RUBRIC_NAME, rubric.score_by_rubric)


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
