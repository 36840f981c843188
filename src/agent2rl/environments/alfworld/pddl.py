"""Reads PDDL text as nested lists. Names are lower-cased, as PDDL does not tell case; comments are dropped.

Not covered: what the lists mean.
"""

import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from agent2rl.core.errors import UserError

Atom: TypeAlias = tuple[str, ...]
"""A list of words alone, such as the fact `(inReceptacle mug table)`."""
Expression: TypeAlias = "str | Atom | list[Expression]"

_COMMENT = re.compile(r";[^\n]*")
_TOKEN = re.compile(r"\([^()]*\)|[()]|[^\s()]+")
"""An atom is one token: most of a problem is made of these."""


def parse_pddl(text: str) -> list[Expression]:
    """The one expression that a PDDL file consists of."""
    top: list[Expression] = []
    inner, outer = top, []
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            outer.append(inner)
            inner = []
        elif token == ")" and outer:
            outer[-1].append(inner)
            inner = outer.pop()
        else:
            inner.append(tuple(token[1:-1].split()) if token[0] == "(" else token)
    if outer or len(top) != 1 or not isinstance(top[0], list):
        raise UserError("A PDDL text is not one expression in balanced parentheses.")
    return top[0]


def parse_sections(text: str) -> dict[str, list[Expression]]:
    """The parts of a problem by their heads: `problem`, `:objects`, `:init`, `:goal`, …"""
    parts = (part for part in parse_pddl(text) if not isinstance(part, str))
    return {part[0]: [*part[1:]] for part in parts if part and isinstance(part[0], str)}


def parse_action_names(text: str) -> set[str]:
    """The names of a domain's actions."""
    parts = (part for part in parse_pddl(text) if isinstance(part, list))
    return {str(part[1]) for part in parts if part[0] == ":action" and len(part) > 1}


def iter_facts(init: Iterable[Expression]) -> Iterator[Atom]:
    """What is true at first. The values of functions, `(= (distance …) …)`, are left out."""
    return (require_atom(part) for part in init if not (isinstance(part, list) and part[0] == "="))


def require_atom(expression: Expression) -> Atom:
    """An expression that must be an atom."""
    if isinstance(expression, tuple) and expression:
        return expression
    raise UserError(f"A PDDL fact is expected where {expression!r} stands.")
