"""What values hold: items, elements, attributes."""

from agent2rl.analysis.programs import attributes
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import REWARD, Core
from agent2rl.analysis.programs.values import (
    NOTHING,
    UNKNOWN,
    Constant,
    Fields,
    Foreign,
    Instance,
    Method,
    Several,
    Value,
    join,
    thing,
)

PAIR = {
    "chosen": m.CHOSEN,
    "rejected": m.REJECTED,
    "preferred": m.CHOSEN,
    "dispreferred": m.REJECTED,
    "winner": m.CHOSEN,
    "loser": m.REJECTED,
}


class Items(Core):
    def item(self, value: Value, index: Value) -> Value:
        key = index.constant
        exact, loose = list[Value](), list[Value]()
        for one in value.things:
            match one:
                case Several() if one.elements is not None and isinstance(key, int):
                    inside = -len(one.elements) <= key < len(one.elements)
                    exact.append(one.elements[key] if inside else one.rest)
                case Several():
                    exact.append(one.any())
                case Fields() if key is not UNKNOWN and str(key) in one.known:
                    exact.append(one.known[str(key)])
                case Fields():
                    loose.append(one.rest if key is not UNKNOWN else one.any())
                case Instance() if one.of.find("__getitem__"):
                    exact.append(self.call(self.attribute(value, "__getitem__"), [index], {}))
                case Instance() if isinstance(key, str):
                    exact.append(one.attributes.get(key, NOTHING))
                case Foreign() if isinstance(key, str) and key in one.attributes:
                    exact.append(one.attributes[key])
                case Foreign():
                    loose.append(self.element(thing(one)))
                case _:
                    pass
        found = join([*exact, *loose])
        found = Value(found.marks | value.marks, found.constant, found.things)
        return found if exact else self.named(found, key)

    def named(self, value: Value, name: Constant) -> Value:
        """What a row or an answer of the world holds under some name."""
        if not isinstance(name, str):
            return value
        if m.FORWARD in value.marks and name in ("loss", "logits"):
            return Value(attributes.behind(self, value, name))
        lowered = name.lower()
        for word, mark in PAIR.items():
            if lowered.startswith(word):
                return value.marked(self.made(mark))
        if REWARD.search(lowered) and value.marks & {m.DATA, m.SAID, m.WORLD, m.TOKENS}:
            return Value(value.marks - m.OWN - {m.FILTERED}, UNKNOWN).marked(self.made(m.JUDGED))
        return value

    def element(self, value: Value) -> Value:
        """One of what it holds."""
        known: list[Value] = []
        for one in value.things:
            match one:
                case Several() | Fields():
                    known.append(one.any() if isinstance(one, Several) else NOTHING)
                case Instance():
                    for name in ("__iter__", "__getitem__"):
                        if one.of.find(name):
                            found = self.call(self.attribute(thing(one), name), [], {})
                            known.append(self.element(found) if name == "__iter__" else found)
                            break
                case Foreign() if "rows" in one.attributes:
                    known.append(one.attributes["rows"])
                case Foreign() | Method():
                    known.append(Value(things=(one,)))
                case _:
                    pass
        found = join(known)
        return Value(found.marks | value.marks, found.constant, found.things)

    def attribute(self, value: Value, name: str) -> Value:
        return attributes.read(self, value, name)
