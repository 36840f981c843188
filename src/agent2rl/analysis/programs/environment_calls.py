"""Interpret calls of the task's environment, in the forms that programs use."""

import re

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    NOTHING,
    AbstractValue,
    LibraryObject,
    collect_marks,
    make_dict,
    make_open_list,
    make_value,
)
from agent2rl.analysis.programs.interpreter_core import AbstractInterpreter, LibraryCall
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.workspace_paths import HOLE

URL = "world-url"
"""Mark of the URL of the served environment."""
ADAPTERS = "agent2rl.environments"
PLACE = re.compile(
    r"(?:^|[._])(?:env|envs|world|worlds|game|games|gym|gyms|environment|place|client)(?:s|_\w+)?$"
)
OPENING = {"connect", "create_connection", "sync", "client", "__enter__"}
ASKING = {"post", "get", "urlopen", "request", "connect", "Request", "send", "recv", "json", "read"}


def interpret_environment_call(machine: AbstractInterpreter, call: LibraryCall) -> AbstractValue | None:
    name, last = call.name, call.last
    marks = collect_marks(call.receiver).union(*map(collect_marks, call.all))
    if name.startswith(ADAPTERS):
        return _interpret_adapter_call(machine, call, marks)
    if URL in marks and (last in ASKING or last[:1].isupper() or call.receiver is not None):
        reply_marks = frozenset({URL} if last[:1].isupper() or last in OPENING else ()) | {
            machine.record_mark(m.WORLD)
        }
        return make_value(LibraryObject("world"), reply_marks)
    place = name.rpartition(".")[0]
    ours = call.receiver is not None and m.WORLD in call.receiver.marks
    if ours and last == "act":
        return AbstractValue(frozenset({m.EXPERT, m.WORLD}))
    if ours and last in ("step", "reset"):
        return _mark_step(machine)
    if ours and last in ("expert", "demonstrate"):
        return make_value(LibraryObject("expert"), frozenset({m.EXPERT, m.WORLD}))
    unknown = call.receiver is not None and not call.receiver.things
    if last == "step" and call.positional and PLACE.search(place) and unknown and marks & m.OWN:
        return _mark_step(machine)
    return None


def _mark_step(machine: AbstractInterpreter) -> AbstractValue:
    return make_value(LibraryObject("world"), frozenset({machine.record_mark(m.WORLD)}))


def _interpret_adapter_call(machine: AbstractInterpreter, call: LibraryCall, marks: Marks) -> AbstractValue:
    world = frozenset({machine.record_mark(m.WORLD)})
    match call.last:
        case "demonstrations" | "play_expert_episodes":
            return make_open_list(AbstractValue(world | {m.EXPERT}, things=(LibraryObject("episode"),)))
        case "rollout":
            policy = call.get_argument("policy", 0) or NOTHING
            said = machine.call_value(
                policy, [make_open_list(AbstractValue(world, things=(LibraryObject("world"),)))], {}
            )
            own = collect_marks(said) & (m.OWN | {m.EXPERT}) or frozenset({m.SAID})
            froms = frozenset(mark for mark in collect_marks(said) if mark.startswith("from:"))
            return make_open_list(AbstractValue(world | own | froms, things=(LibraryObject("episode"),)))
        case "rows":
            return make_open_list(
                make_dict({"prompt": AbstractValue(frozenset({m.DATA}))}, AbstractValue(frozenset({m.DATA})))
            )
        case "environment_factory":
            return make_value(LibraryObject("world"), world)
        case _:
            return make_value(LibraryObject("world"), world | (marks & {URL}))


def read_environment_url(name: str) -> AbstractValue | None:
    """Return the environment's URL if the variable holds it."""
    return AbstractValue(frozenset({URL}), HOLE) if name == "ENVIRONMENT_URL" else None
