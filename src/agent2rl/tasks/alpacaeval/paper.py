"""AlpacaEval as published: 512 new tokens, and a judge that ranks two answers."""

from pathlib import Path

from agent2rl.core.engine import Sampling
from agent2rl.core.task import Example, PublishedProfile
from agent2rl.evaluators.judge import RankingReferee
from agent2rl.evaluators.pairwise import Pairwise
from agent2rl.evaluators.single_turn import QuestionPrompt


def get_reference(example: Example) -> str:
    return example.target


PAPER = PublishedProfile(
    name="paper-alpacaeval",
    version=1,
    evaluator=Pairwise(
        rule="paper-alpacaeval-1",
        reference=get_reference,
        prompt=QuestionPrompt(sampling=Sampling(max_tokens=512)),
        group="dataset",
        judge=RankingReferee,
    ),
    scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
)
