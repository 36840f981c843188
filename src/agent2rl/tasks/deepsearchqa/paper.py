"""DeepSearchQA as published: the published shuffle of the questions, and a text of thoughts and actions.

The published stop string for `Action:` cuts every action that begins a line, so that no search is ever made.
That is a defect: here an action does not end a reply. Not covered: the order of the questions on the hub,
which need not be the file's.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from agent2rl.core.engine import Sampling
from agent2rl.core.errors import UserError
from agent2rl.core.task import Example, PublishedProfile, Splits
from agent2rl.environments.search.answer_matching import MATCHER
from agent2rl.environments.search.environment import SNIPPETS, make_graded_environment
from agent2rl.evaluators.episode_prompts import ForcedAction
from agent2rl.evaluators.episodes import Episodes
from agent2rl.evaluators.published_prompts import ThoughtPrompt, extract_labelled_action
from agent2rl.evaluators.search_grading import settle_published_searches

SEED, TRAIN, TEST, STEPS = 42, 100, 200, 6
INSTRUCTIONS = """\
You answer questions by searching the web.

Write in this form:
Thought: [what you think]
Action: search[what to search for]   <- to search
  OR
Action: answer[Lisbon]   <- to give the final answer

Rules:
- Begin with a Thought.
- search[] finds information.
- answer[] is only for when you know enough.
- If the answer is a set, write all its items with commas between them.
- Be brief and factual.
"""


def split_questions(questions: Sequence[Example]) -> Splits:
    """Split as published: shuffled, the first 100 are for training and the next 200 for scoring."""
    if len(questions) < 6:
        raise UserError("There are fewer than six questions.")
    order = [int(index) for index in np.random.default_rng(SEED).permutation(len(questions))]
    count = min(TRAIN, len(questions) // 3)
    train = tuple(questions[index] for index in order[:count])
    test = tuple(questions[index] for index in order[count : count + TEST])
    return Splits(train, feedback=test, heldout=test, test=test)


def load(read_questions: Callable[[Path | None], Sequence[Example]], data_dir: Path | None) -> Splits:
    return split_questions([_limit_steps(example) for example in read_questions(data_dir)])


def _limit_steps(example: Example) -> Example:
    return replace(example, meta={**example.meta, "steps": STEPS})


def adapt(splits: Splits) -> Splits:
    """Let a search show snippets alone, and the question its type of answer."""
    return splits.map_examples(_show_snippets)


def _show_snippets(example: Example) -> Example:
    return replace(example, meta={**example.meta, "results": SNIPPETS})


EVALUATOR = Episodes(
    rule=f"paper-deepsearchqa-1-{MATCHER}",
    world=make_graded_environment,
    prompt=ThoughtPrompt(chat="", plain={"": INSTRUCTIONS}, stop=(), name="paper"),
    group="problem_category",
    sampling=Sampling(max_tokens=256, stop=("\nThought:", "\nObservation:"), plain=True),
    slow=True,
    action=extract_labelled_action,
    settle=settle_published_searches,
    forced=ForcedAction(begin="\nAction: answer[", end="]", max_tokens=128),
)


def build_profile(read_questions: Callable[[Path | None], Sequence[Example]] | None) -> PublishedProfile:
    """`read_questions` reads the official questions; None: the task's own examples are used as they are."""
    return PublishedProfile(
        name="paper-deepsearchqa",
        version=1,
        evaluator=EVALUATOR if read_questions else replace(EVALUATOR, slow=False),
        load=partial(load, read_questions) if read_questions else None,
        adapt=adapt,
        scoring=Path(__file__).with_name("paper.md").read_text(encoding="utf-8"),
    )
