"""Finding texts by their words, ranked as Anserini's Lucene index ranks them, over numpy alone.

    index = Index.of([("B01", "red cotton shirt"), ("B02", "blue wool hat")])
    index.search("shirts", 10)       # [Hit(id='B01', score=…)]

What a world searches with that has a closed collection of texts. Not covered: phrases, fields, anything but a
bag of words, and languages whose stems are not English.
"""

from agent2rl.environments.retrieval.bm25 import Bm25Index, Hit
from agent2rl.environments.retrieval.tokenizer import extract_terms

__all__ = ["Bm25Index", "Hit", "extract_terms"]
