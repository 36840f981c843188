"""The words of a game, read from its own grammar: how commands are spelled and how the world answers.

A grammar gives each action a template ("take {o} from {r}") and an answer, written by rules. A rule has
variants, and the first whose condition holds is used. Here answers become format strings:

    {r} {o} {co} {ko}    the name of the receptacle or object
    {things} {names}     a list, each item with its article or without
    {rule_name}          the text of another rule that has conditions; rules without are put in place

A condition is kept as the set of predicates it names. That is enough where it speaks of one thing, and the
engine knows what the few others ask: those of `look` and its two lists. Not covered: further such conditions,
and what a list is made of, which the engine knows as well.
"""

import json
import re
import string
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from pydantic import BaseModel, TypeAdapter, ValidationError

from agent2rl.core.errors import UserError

ACTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "gotolocation": ("r",),
        "openobject": ("r",),
        "closeobject": ("r",),
        "pickupobject": ("o", "r"),
        "putobject": ("o", "r"),
        "examinereceptacle": ("r",),
        "examineobject": ("o",),
        "toggleobject": ("o",),
        "heatobject": ("o", "r"),
        "cleanobject": ("o", "r"),
        "coolobject": ("o", "r"),
        "sliceobject": ("co", "ko"),
        "look": (),
        "inventory": (),
        "help": (),
    }
)
"""The actions of ALFWorld's domain, and what each command names, in this order."""

CONDITIONAL: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "examinereceptacle": frozenset({"r", "things"}),
        "examineobject": frozenset({"o", "things"}),
        "toggleobject": frozenset({"o"}),
        "inventory": frozenset({"things"}),
        "look": frozenset({"names", "list_objects_on_the_floor", "list_appliances"}),
    }
)
"""Actions whose answer depends on the state, and the slots that it may have. Others answer with the names in
the command and, where one comes to a receptacle or opens it, `examineReceptacle_feedback`."""

_PART = re.compile(
    r'action\s+(?P<action>[\w/-]+)\s*\{(?P<body>(?:\s*\w+\s*::\s*(?:""".*?"""|"[^"]*")\s*;)*)\s*\}'
    r'|grammar\s*::\s*"""(?P<rules>.*?)"""\s*;',
    re.DOTALL,
)
_FIELD = re.compile(r'(\w+)\s*::\s*(?:"""(.*?)"""|"([^"]*)")\s*;', re.DOTALL)
_COMMENT = re.compile(r"^[ \t]*#.*\n", re.MULTILINE)
_TASK = re.compile(r'"task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*("(?:[^"\\]|\\.)*")')
_SYMBOL = re.compile(r"\[\s*\{(?P<item>[^|{}]+)\|[^{}]*\}\s*\]|\{(?P<value>[^{}]+)\}|#(?P<rule>[^#]+)#")
_NAME = r"(\S+ \d*)"
_PREDICATE = re.compile(r"(\w+)\(")


@dataclass(frozen=True)
class RuleVariant:
    needs: frozenset[str]
    """The predicates of the condition; none: it always holds."""
    text: str


Rule = tuple[RuleVariant, ...]


def choose_variant(rule: Rule, facts: Set[str]) -> str:
    """The text of the first variant whose condition holds."""
    for variant in rule:
        if variant.needs <= facts:
            return variant.text
    return ""


@dataclass(frozen=True)
class Grammar:
    commands: Mapping[str, tuple[tuple[str, re.Pattern[str]], ...]]
    """First word → the actions whose commands begin with it, and how to find the names in one."""
    spellings: Mapping[str, str]
    """Action → its command as a format string."""
    answers: Mapping[str, Rule]
    """Action → what the world says once it is done."""
    intro: str
    floor: Rule
    fixtures: Rule
    separators: tuple[str, str, str]
    """For lists: in place of an empty one, between items, before the last."""

    def join(self, items: Sequence[str]) -> str:
        """A list in words."""
        nothing, comma, last = self.separators
        if len(items) < 2:
            return items[0] if items else nothing
        return f"{comma.join(items[:-1])}{last}{items[-1]}"


def split_task(grammar: str) -> tuple[str, str]:
    """The sentence that states the task, and the rest: games have thousands of tasks but few grammars."""
    found = _TASK.search(grammar)
    if not found:
        raise UserError('The grammar of this game has no rule "task".')
    return str(json.loads(found[1])), f'{grammar[: found.start(1)]}""{grammar[found.end(1) :]}'


@lru_cache(maxsize=8)
def parse_grammar(text: str) -> Grammar:
    """A grammar, whatever the task."""
    rules = _RuleCompiler()
    spellings: dict[str, str] = {}
    answers: dict[str, str] = {}
    for part in _PART.finditer(_COMMENT.sub("", text)):
        if part["rules"]:
            rules.add(part["rules"])
        for field, block, line in _FIELD.findall(part["body"] or ""):
            if field == "grammar":
                rules.add(block)
            elif field == "template":
                spellings[part["action"].lower()] = line
            elif field == "feedback":
                answers[part["action"].lower()] = line.lstrip()
    for action in ACTIONS:
        if action not in spellings or action not in answers:
            raise UserError(f"The grammar of this game has no template or no feedback for {action}.")
    spellings = {action: _parse_template(action, spellings[action]) for action in ACTIONS}
    return Grammar(
        MappingProxyType(_compile_commands(spellings)),
        MappingProxyType(spellings),
        MappingProxyType({action: rules.compile_answer(action, answers[action]) for action in ACTIONS}),
        intro=rules.compile("#intro#", {"look_feedback", "task"}),
        floor=rules.compile_rule("list_objects_on_the_floor", {"things"}),
        fixtures=rules.compile_rule("list_appliances", {"things"}),
        separators=(
            rules.compile("#list_empty#", set()),
            rules.compile("#list_separator#", set()),
            rules.compile("#list_last_separator#", set()),
        ),
    )


def _parse_template(action: str, template: str) -> str:
    """A template as a format string, with its names in the order in which they are known."""
    text = _SYMBOL.sub(
        lambda found: "{" + (found["item"] or found["value"]).partition(".")[0] + "}", template
    )
    if tuple(slot for _, slot, _, _ in string.Formatter().parse(text) if slot) != ACTIONS[action]:
        raise UserError(f"The command for {action} is spelled in a way that is not known: {template!r}.")
    return text


def _compile_commands(spellings: Mapping[str, str]) -> dict[str, tuple[tuple[str, re.Pattern[str]], ...]]:
    commands: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {}
    for action, text in spellings.items():
        parts = string.Formatter().parse(text)
        pattern = "".join(re.escape(literal) + _NAME * (slot is not None) for literal, slot, _, _ in parts)
        word = text.partition(" ")[0]
        commands[word] = (*commands.get(word, ()), (action, re.compile(pattern)))
    return commands


class _Production(BaseModel):
    """A variant as it is written."""

    rhs: str
    condition: str = ""


_SOURCES = TypeAdapter(dict[str, list[_Production]])


class _RuleCompiler:
    """The rules of a grammar as they are written, and their making into format strings."""

    def __init__(self) -> None:
        self.sources: dict[str, list[_Production]] = {}

    def add(self, block: str) -> None:
        try:
            self.sources.update(_SOURCES.validate_json(block))
        except ValidationError as error:
            raise UserError(f"A block of this game's grammar is not made of rules: {error}.") from error

    def compile_answer(self, action: str, text: str) -> Rule:
        """An action's answer: a rule by name, or a text."""
        if action in CONDITIONAL and text.startswith("#"):
            return self.compile_rule(text.strip("#"), CONDITIONAL[action])
        slots = {*ACTIONS[action]}
        if action in ("gotolocation", "openobject"):
            slots.add("examineReceptacle_feedback")
        return (RuleVariant(frozenset(), self.compile(text, slots)),)

    def compile_rule(self, name: str, slots: Set[str]) -> Rule:
        if not self.sources.get(name):
            raise UserError(f"The grammar of this game has no rule {name!r}.")
        return tuple(
            RuleVariant(frozenset(_PREDICATE.findall(variant.condition)), self.compile(variant.rhs, slots))
            for variant in self.sources[name]
        )

    def compile(self, text: str, slots: Set[str]) -> str:
        """A format string, which may have these slots."""
        try:
            compiled = _SYMBOL.sub(self._replace_symbol, text)
            compiled.format(**dict.fromkeys(slots, ""))
        except (KeyError, ValueError, IndexError, RecursionError) as error:
            raise UserError(f"The engine cannot say {text!r}, which this game's grammar asks for.") from error
        return compiled

    def _replace_symbol(self, symbol: re.Match[str]) -> str:
        if symbol["rule"]:
            variants = self.sources.get(symbol["rule"], [])
            if len(variants) == 1 and symbol["rule"] != "task":
                return _SYMBOL.sub(self._replace_symbol, variants[0].rhs)
            return "{" + re.sub(r"\W", "_", symbol["rule"]) + "}"
        if symbol["item"]:
            item = _SYMBOL.sub(self._replace_symbol, symbol["item"])
            return "{things}" if "indefinite" in item or item.startswith("a {") else "{names}"
        variable, _, attribute = symbol["value"].strip().partition(".")
        return "a" if attribute == "indefinite" else "{" + variable + "}"
