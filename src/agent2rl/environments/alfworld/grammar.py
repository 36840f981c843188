"""Parse a game's grammar: how commands are spelled, and how the game answers.

A grammar gives each action a template ("take {o} from {r}") and an answer, written by rules. A rule has
variants, and the first one with a true condition is used. Here answers become format strings:

    {r} {o} {co} {ko}    the name of the receptacle or object
    {things} {names}     a list, each item with its article or without
    {rule_name}          the text of another rule that has conditions; rules without conditions are inlined

A condition is reduced to the set of predicates in it. That is enough for a condition about one thing. The few
others, those of `look` and its two lists, are built into the engine. Not covered: further such conditions,
and the contents of a list, which are built into the engine as well.
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
"""The actions of ALFWorld's domain, and the arguments of each command, in this order."""

CONDITIONAL: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "examinereceptacle": frozenset({"r", "things"}),
        "examineobject": frozenset({"o", "things"}),
        "toggleobject": frozenset({"o"}),
        "inventory": frozenset({"things"}),
        "look": frozenset({"names", "list_objects_on_the_floor", "list_appliances"}),
    }
)
"""Actions with an answer that depends on the state, and the slots that it may have. The answers of others use
the names in the command and, for going to a receptacle or opening it, `examineReceptacle_feedback`."""

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
    """The predicates of the condition. If there are none, it is always true."""
    text: str


Rule = tuple[RuleVariant, ...]


def choose_variant(rule: Rule, facts: Set[str]) -> str:
    """Return the text of the first variant with a true condition."""
    for variant in rule:
        if variant.needs <= facts:
            return variant.text
    return ""


@dataclass(frozen=True)
class Grammar:
    commands: Mapping[str, tuple[tuple[str, re.Pattern[str]], ...]]
    """First word → the actions with commands that begin with it, and a pattern for the names in them."""
    spellings: Mapping[str, str]
    """Action → its command as a format string."""
    answers: Mapping[str, Rule]
    """Action → the game's answer to it."""
    intro: str
    floor: Rule
    fixtures: Rule
    separators: tuple[str, str, str]
    """For lists: text for an empty list, separator between items, separator before the last item."""

    def join(self, items: Sequence[str]) -> str:
        """Join items into a list in words."""
        nothing, comma, last = self.separators
        if len(items) < 2:
            return items[0] if items else nothing
        return f"{comma.join(items[:-1])}{last}{items[-1]}"


def split_task(grammar: str) -> tuple[str, str]:
    """Split the task sentence from the rest, which can be cached: there are many tasks but few grammars."""
    match = _TASK.search(grammar)
    if not match:
        raise UserError('The grammar of this game has no rule "task".')
    return str(json.loads(match[1])), f'{grammar[: match.start(1)]}""{grammar[match.end(1) :]}'


@lru_cache(maxsize=8)
def parse_grammar(text: str) -> Grammar:
    """Parse a grammar without its task sentence."""
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
    """Turn a template into a format string, and check the order of its arguments."""
    text = _SYMBOL.sub(
        lambda match: "{" + (match["item"] or match["value"]).partition(".")[0] + "}", template
    )
    if tuple(slot for _, slot, _, _ in string.Formatter().parse(text) if slot) != ACTIONS[action]:
        raise UserError(f"The command for {action} is spelled in an unknown way: {template!r}.")
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
    """A variant of a rule, as in the file."""

    rhs: str
    condition: str = ""


_SOURCES = TypeAdapter(dict[str, list[_Production]])


class _RuleCompiler:
    """Collect the rules of a grammar, and compile them to format strings."""

    def __init__(self) -> None:
        self.sources: dict[str, list[_Production]] = {}

    def add(self, block: str) -> None:
        try:
            self.sources.update(_SOURCES.validate_json(block))
        except ValidationError as error:
            raise UserError(f"A block of this game's grammar has invalid rules: {error}.") from error

    def compile_answer(self, action: str, text: str) -> Rule:
        """Compile an action's answer: the name of a rule, or a text."""
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
        """Compile a text to a format string, which may have only these slots."""
        try:
            compiled = _SYMBOL.sub(self._replace_symbol, text)
            compiled.format(**dict.fromkeys(slots, ""))
        except (KeyError, ValueError, IndexError, RecursionError) as error:
            raise UserError(f"A text of this game's grammar is not supported: {text!r}.") from error
        return compiled

    def _replace_symbol(self, symbol: re.Match[str]) -> str:
        if symbol["rule"]:
            variants = self.sources.get(symbol["rule"], [])
            if len(variants) == 1 and symbol["rule"] != "task":
                # Each game has its own task, and the compiled grammar is shared by many games.
                return _SYMBOL.sub(self._replace_symbol, variants[0].rhs)
            return "{" + re.sub(r"\W", "_", symbol["rule"]) + "}"
        if symbol["item"]:
            item = _SYMBOL.sub(self._replace_symbol, symbol["item"])
            return "{things}" if "indefinite" in item or item.startswith("a {") else "{names}"
        variable, _, attribute = symbol["value"].strip().partition(".")
        return "a" if attribute == "indefinite" else "{" + variable + "}"
