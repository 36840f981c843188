"""Search environment: answer questions by searching and reading documents, step by step.

    environment = SearchEnvironment(lambda example: LocalCorpus(documents))
    print(environment.reset(example).observation)
    print(environment.step("Thought: who founded it?\\nAction: search[founder of Orin Foods]").observation)
    print(environment.step("answer[Ada Lorn; Bo Marr]").reward)

A `Backend` does the searching: `LocalCorpus` for documents, `search_engines` for live engines, `ProxyBackend`
for searches through the harness, `RecordingBackend` and `ReplayBackend` for reproducible searches;
`search_engines` opens one by its name. `answer_matching` scores answers without a judge, `actions` parses the
action out of a model's reply. Not covered: prompts, judges.
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
    LocalCorpus,
    ProxyBackend,
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
    "GoldAnswer",
    "LocalCorpus",
    "ProxyBackend",
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
