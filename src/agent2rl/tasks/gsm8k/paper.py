"""GSM8K as published: four worked problems as turns of the chat, and the last number of the reply.

The published rule is that of OpenCompass's `gsm8k_gen_1d7fe4`. It takes the last run of digits, so `1,234` is
234. The metric `flexible` reads commas.
"""

import tomllib
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Example, PublishedProfile
from agent2rl.evaluators.scorers import published_number, same_last_number, same_published_number
from agent2rl.evaluators.single_turn import FewShotPrompt, SingleTurn


def score_published_number(output: str, example: Example) -> float:
    return same_published_number(output, example.target)


def score_last_number(output: str, example: Example) -> float:
    return same_last_number(output, example.target)


def read_shots(path: Path) -> tuple[tuple[str, str], ...]:
    """Read the worked problems. As published, an answer ends with a line break."""
    shots = tomllib.loads(path.read_text(encoding="utf-8"))["shots"]
    return tuple((shot["question"], f"{shot['answer']}\n") for shot in shots)


PAPER = PublishedProfile(
    name="paper-gsm8k",
    version=2,
    evaluator=SingleTurn(
        rule="paper-gsm8k-2",
        score=score_published_number,
        prompt=FewShotPrompt(
            chat="Question: {question}\nLet's think step by step\nAnswer:",
            turns=read_shots(Path(__file__).with_name("paper_shots.toml")),
            sampling=Sampling(max_tokens=512),
        ),
        answer=published_number,
        metrics={"flexible": score_last_number},
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    exposes={"eval.py": Path(__file__).with_name("paper_eval.py")},
)
