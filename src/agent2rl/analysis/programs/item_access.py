"""What values hold: items, elements, attributes."""

from agent2rl.analysis.programs import attribute_lookup
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    UNKNOWN,
    AbstractValue,
    Constant,
    DictValue,
    InstanceValue,
    LibraryObject,
    ListValue,
    UnresolvedMethod,
    join_values,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import REWARD, AbstractInterpreter

PAIR = {
    "chosen": m.CHOSEN,
    "rejected": m.REJECTED,
    "preferred": m.CHOSEN,
    "dispreferred": m.REJECTED,
    "winner": m.CHOSEN,
    "loser": m.REJECTED,
}


class ItemInterpreter(AbstractInterpreter):
    def read_item(self, value: AbstractValue, index: AbstractValue) -> AbstractValue:
        key = index.constant
        exact, loose = list[AbstractValue](), list[AbstractValue]()
        for one in value.things:
            match one:
                case ListValue() if one.elements is not None and isinstance(key, int):
                    inside = -len(one.elements) <= key < len(one.elements)
                    exact.append(one.elements[key] if inside else one.rest)
                case ListValue():
                    exact.append(one.join_elements())
                case DictValue() if key is not UNKNOWN and str(key) in one.known:
                    exact.append(one.known[str(key)])
                case DictValue():
                    loose.append(one.rest if key is not UNKNOWN else one.join_elements())
                case InstanceValue() if one.of.find_member("__getitem__"):
                    exact.append(self.call_value(self.read_attribute(value, "__getitem__"), [index], {}))
                case InstanceValue() if isinstance(key, str):
                    exact.append(one.attributes.get(key, NOTHING))
                case LibraryObject() if isinstance(key, str) and key in one.attributes:
                    exact.append(one.attributes[key])
                case LibraryObject():
                    loose.append(self.read_element(make_value(one)))
                case _:
                    pass
        found = join_values([*exact, *loose])
        found = AbstractValue(found.marks | value.marks, found.constant, found.things)
        return found if exact else self.mark_named_item(found, key)

    def mark_named_item(self, value: AbstractValue, name: Constant) -> AbstractValue:
        """What a row or an answer of the world holds under some name."""
        if not isinstance(name, str):
            return value
        if m.FORWARD in value.marks and name in ("loss", "logits"):
            return AbstractValue(attribute_lookup.infer_attribute_marks(self, value, name))
        lowered = name.lower()
        for word, mark in PAIR.items():
            if lowered.startswith(word):
                return value.with_marks(self.record_mark(mark))
        if REWARD.search(lowered) and value.marks & {m.DATA, m.SAID, m.WORLD, m.TOKENS}:
            return AbstractValue(value.marks - m.OWN - {m.FILTERED}, UNKNOWN).with_marks(
                self.record_mark(m.JUDGED)
            )
        return value

    def read_element(self, value: AbstractValue) -> AbstractValue:
        """One of what it holds."""
        known: list[AbstractValue] = []
        for one in value.things:
            match one:
                case ListValue() | DictValue():
                    known.append(one.join_elements() if isinstance(one, ListValue) else NOTHING)
                case InstanceValue():
                    for name in ("__iter__", "__getitem__"):
                        if one.of.find_member(name):
                            found = self.call_value(self.read_attribute(make_value(one), name), [], {})
                            known.append(self.read_element(found) if name == "__iter__" else found)
                            break
                case LibraryObject() if "rows" in one.attributes:
                    known.append(one.attributes["rows"])
                case LibraryObject() | UnresolvedMethod():
                    known.append(AbstractValue(things=(one,)))
                case _:
                    pass
        found = join_values(known)
        return AbstractValue(found.marks | value.marks, found.constant, found.things)

    def read_attribute(self, value: AbstractValue, name: str) -> AbstractValue:
        return attribute_lookup.look_up_attribute(self, value, name)
