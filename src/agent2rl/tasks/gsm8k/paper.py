"""GSM8K as published: four worked problems as turns of the chat, and the last number of the reply.

The published rule is that of OpenCompass's `gsm8k_gen_1d7fe4`. It reads `1,234` as 234, because it takes the
last run of digits. That is a defect: here a comma between digits separates thousands.
"""

import tomllib
from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Example, PublishedProfile
from agent2rl.evaluators.scorers import published_number, same_published_number
from agent2rl.evaluators.single_turn import FewShotPrompt, SingleTurn


def score_last_number(output: str, example: Example) -> float:
    return same_published_number(output, example.target)


def read_shots(path: Path) -> tuple[tuple[str, str], ...]:
    """Read the worked problems. As published, an answer ends with a line break."""
    shots = tomllib.loads(path.read_text(encoding="utf-8"))["shots"]
    return tuple((shot["question"], f"{shot['answer']}\n") for shot in shots)


PAPER = PublishedProfile(
    name="paper-gsm8k",
    version=1,
    evaluator=SingleTurn(
        rule="paper-gsm8k-1",
        score=score_last_number,
        prompt=FewShotPrompt(
            chat="Question: {question}\nLet's think step by step\nAnswer:",
            turns=read_shots(Path(__file__).with_name("paper_shots.toml")),
            sampling=Sampling(max_tokens=512),
        ),
        answer=published_number,
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    exposes={"eval.py": Path(__file__).with_name("paper_eval.py")},
)
