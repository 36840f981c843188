"""Search: questions that are answered by searching and reading, one step after another.

    play = Research(lambda example: Local(documents))
    print(play.reset(example).observation)
    print(play.step("Thought: who founded it?\\nAction: search[founder of Orin Foods]").observation)
    print(play.step("answer[Ada Lorn; Bo Marr]").reward)

What is searched is a `Backend`: `LocalCorpus` for documents, `live` for search engines, `DeskBackend` for
what the harness searches, `RecordingBackend` and `ReplayBackend` for whatever should be the same again;
`backend_names` finds one by its name. `answer_matching` says what is right without a judge, `actions` finds
the action in what a model wrote. Not covered: prompts, judges.
"""

from agent2rl.core.environment import OpenWorld
from agent2rl.environments.search.actions import normalize_action
from agent2rl.environments.search.answer_matching import (
    AnswerMarks,
    GoldAnswer,
    mark_answer,
    parse_gold_answer,
)
from agent2rl.environments.search.backends import (
    Backend,
    DeskBackend,
    LocalCorpus,
    RecordingBackend,
    ReplayBackend,
    SearchDocument,
    SearchResult,
)
from agent2rl.environments.search.environment import SearchEnvironment, open_world

__all__ = [
    "WORLD",
    "AnswerMarks",
    "Backend",
    "DeskBackend",
    "GoldAnswer",
    "LocalCorpus",
    "RecordingBackend",
    "ReplayBackend",
    "SearchDocument",
    "SearchEnvironment",
    "SearchResult",
    "mark_answer",
    "normalize_action",
    "parse_gold_answer",
]

WORLD: OpenWorld = open_world
