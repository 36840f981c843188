import json
from types import SimpleNamespace


def load(path):
    with open(path) as f:
        return SimpleNamespace(**json.load(f))
