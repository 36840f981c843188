"""Keeps the benchmark's own pages out of what a search shows: they have the questions with their answers.

What names the benchmark is withheld: its data set on any hub, its paper, copies that say what they are. Not
covered: a copy that does not say so.
"""

import re
from urllib.parse import unquote

from agent2rl.environments.search.backend import SearchResult

_NAME = re.compile(r"deep[\s_.+-]{0,3}search[\s_.+-]{0,3}qa|dsqa[\s_.+-]{0,3}full", re.IGNORECASE)


def names_the_benchmark(text: str) -> bool:
    """Whether a text or an address does, however that is written."""
    return bool(_NAME.search(unquote(text)))


def is_withheld(result: SearchResult) -> bool:
    return any(map(names_the_benchmark, (result.id, result.title, result.snippet)))
