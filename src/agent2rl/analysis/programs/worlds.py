"""The task's world, in the shapes that programs reach it by."""

import re

from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.core import Call, Core
from agent2rl.analysis.programs.marks import Marks
from agent2rl.analysis.programs.values import (
    HOLE,
    NOTHING,
    Foreign,
    Value,
    deep,
    fields,
    some,
    thing,
)

URL = "world-url"
"""The mark of the served world's address."""
FACES = "agent2rl.environments"
PLACE = re.compile(
    r"(?:^|[._])(?:env|envs|world|worlds|game|games|gym|gyms|environment|place|client)(?:s|_\w+)?$"
)
OPENING = {"connect", "create_connection", "sync", "client", "__enter__"}
ASKING = {"post", "get", "urlopen", "request", "connect", "Request", "send", "recv", "json", "read"}


def known(machine: Core, call: Call) -> Value | None:
    name, last = call.name, call.last
    marks = deep(call.receiver).union(*map(deep, call.all))
    if name.startswith(FACES):
        return _face(machine, call, marks)
    if URL in marks and (last in ASKING or last[:1].isupper() or call.receiver is not None):
        kept = frozenset({URL} if last[:1].isupper() or last in OPENING else ()) | {machine.made(m.WORLD)}
        return thing(Foreign("world"), kept)
    place = name.rpartition(".")[0]
    ours = call.receiver is not None and m.WORLD in call.receiver.marks
    if ours and last == "act":
        return Value(frozenset({m.EXPERT, m.WORLD}))
    if ours and last in ("step", "reset"):
        return _stepped(machine)
    if ours and last in ("expert", "demonstrate"):
        return thing(Foreign("expert"), frozenset({m.EXPERT, m.WORLD}))
    unknown = call.receiver is not None and not call.receiver.things
    if last == "step" and call.positional and PLACE.search(place) and unknown and marks & m.OWN:
        return _stepped(machine)
    return None


def _stepped(machine: Core) -> Value:
    return thing(Foreign("world"), frozenset({machine.made(m.WORLD)}))


def _face(machine: Core, call: Call, marks: Marks) -> Value:
    world = frozenset({machine.made(m.WORLD)})
    match call.last:
        case "demonstrations":
            return some(Value(world | {m.EXPERT}, things=(Foreign("episode"),)))
        case "rollout":
            policy = call.argument("policy", 0) or NOTHING
            said = machine.call(policy, [some(Value(world, things=(Foreign("world"),)))], {})
            own = deep(said) & (m.OWN | {m.EXPERT}) or frozenset({m.SAID})
            froms = frozenset(mark for mark in deep(said) if mark.startswith("from:"))
            return some(Value(world | own | froms, things=(Foreign("episode"),)))
        case "rows":
            return some(fields({"prompt": Value(frozenset({m.DATA}))}, Value(frozenset({m.DATA}))))
        case "environment_factory":
            return thing(Foreign("world"), world)
        case _:
            return thing(Foreign("world"), world | (marks & {URL}))


def address(name: str) -> Value | None:
    """Of an environment variable that says where the world is."""
    return Value(frozenset({URL}), HOLE) if name == "ENVIRONMENT_URL" else None
