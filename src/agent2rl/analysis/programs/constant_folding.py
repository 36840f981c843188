"""Constant folding: results of operators on values that are known."""

import ast
import operator
from collections.abc import Callable

from agent2rl.analysis.programs.abstract_values import (
    LONGEST_TEXT,
    NOTHING,
    UNKNOWN,
    AbstractValue,
    Constant,
    DictValue,
    ListValue,
    collect_marks,
)
from agent2rl.analysis.workspace_paths import HOLE

COMPARED: dict[type[ast.cmpop], Callable[[object, object], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
}


ORDERED: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


CALCULATED: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def to_constant(value: object) -> Constant:
    if isinstance(value, str):
        # A hole in the program's own text would be taken for a part that is not known.
        return value[:LONGEST_TEXT].replace(HOLE, " ")
    return value if isinstance(value, int | float) or value is None else UNKNOWN


def fold_unary(op: ast.unaryop, value: AbstractValue) -> AbstractValue:
    constant = value.constant
    if isinstance(op, ast.Not):
        truth = value.truth
        return AbstractValue(collect_marks(value), UNKNOWN if truth is None else not truth)
    if isinstance(op, ast.USub) and isinstance(constant, int | float):
        return AbstractValue(value.marks, -constant)
    return AbstractValue(collect_marks(value), UNKNOWN, value.things)


def fold_binary(op: ast.operator, left: AbstractValue, right: AbstractValue) -> Constant:
    a, b = left.constant, right.constant
    if isinstance(a, str) and isinstance(op, ast.Div):
        return f"{a}/{b if isinstance(b, str) else HOLE}"[:LONGEST_TEXT]
    if isinstance(op, ast.Div) and isinstance(b, str) and left.constant is UNKNOWN:
        return f"{HOLE}/{b}"[:LONGEST_TEXT]
    if isinstance(op, ast.Add) and (isinstance(a, str) or isinstance(b, str)):
        both = (a if isinstance(a, str) else HOLE) + (b if isinstance(b, str) else HOLE)
        return both[:LONGEST_TEXT]
    if isinstance(op, ast.Mod) and isinstance(a, str):
        return a.partition("%")[0] + HOLE
    if isinstance(a, int | float) and isinstance(b, int | float) and type(op) in CALCULATED:
        # Or else a few multiplications could make a number that takes long to compute with.
        if max(abs(a), abs(b)) > 1e18:
            return UNKNOWN
        try:
            return CALCULATED[type(op)](a, b)
        except (ZeroDivisionError, OverflowError, ValueError):
            return UNKNOWN
    if isinstance(op, ast.Pow) and isinstance(a, int | float) and isinstance(b, int | float):
        return _fold_power(a, b)
    return UNKNOWN


def _fold_power(base: float, exponent: float) -> Constant:
    if abs(exponent) > 64 or abs(base) > 1e6:
        return UNKNOWN
    try:
        power = float(base) ** exponent
    except (ZeroDivisionError, OverflowError, ValueError):
        return UNKNOWN
    if isinstance(power, complex):
        return UNKNOWN
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0 and abs(power) < 1e15
    return int(power) if whole else power


def fold_comparison(op: ast.cmpop, left: AbstractValue, right: AbstractValue) -> Constant:
    nothing = [value for value in (left, right) if value.constant is None]
    if isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) and nothing:
        other = right if nothing[0] is left else left
        if other.constant is UNKNOWN and not other.things:
            return UNKNOWN
        is_none = other.constant is None and not other.things
        return is_none == isinstance(op, ast.Is | ast.Eq)
    if isinstance(op, ast.In | ast.NotIn):
        return _fold_membership(op, left, right)
    if not (left.known and right.known):
        return UNKNOWN
    a, b = left.constant, right.constant
    if type(op) in COMPARED:
        return COMPARED[type(op)](a, b)
    if type(op) in ORDERED and isinstance(a, int | float) and isinstance(b, int | float):
        return ORDERED[type(op)](a, b)
    return UNKNOWN


def _fold_membership(op: ast.cmpop, left: AbstractValue, right: AbstractValue) -> Constant:
    if not left.known:
        return UNKNOWN
    if right.known and isinstance(right.constant, str) and isinstance(left.constant, str):
        return (left.constant in right.constant) == isinstance(op, ast.In)
    for one in right.things:
        if isinstance(one, ListValue) and one.elements is not None and all(v.known for v in one.elements):
            return any(v.constant == left.constant for v in one.elements) == isinstance(op, ast.In)
        if isinstance(one, DictValue) and one.rest is NOTHING:
            return (str(left.constant) in one.known) == isinstance(op, ast.In)
    return UNKNOWN
