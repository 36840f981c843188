"""Steps through one program."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs import losses, noting
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.calls import Calls
from agent2rl.analysis.programs.core import Spent
from agent2rl.analysis.programs.losses import Kind
from agent2rl.analysis.programs.sources import Files, Script
from agent2rl.analysis.programs.trace import Trace
from agent2rl.analysis.programs.values import Module, Scope, Value, constant, deep

ENVIRONMENT = {
    "WORKSPACE": ".",
    "OUTPUT_DIR": "output",
    "DATA_PATH": "data",
    "MODEL_PATH": "models/\0",
    "LOCAL_RANK": "0",
    "RANK": "0",
    "WORLD_SIZE": "1",
}
"""What a program of an agent finds set."""


class Machine(Calls):
    def _known(self, name: str, value: Value, scope: Scope) -> None:  # noqa: ARG002
        noting.name(self, name, value)

    def update(self, before: Value, change: Value) -> None:
        """Weights that are moved by hand, along a gradient that was worked out by hand."""
        was, by = deep(before), deep(change)
        learnt = {m.DATA, m.SAID, m.TOKENS, m.WORLD, m.JUDGED, m.EXPERT}
        if m.WEIGHTS not in was or was & learnt or not by & learnt:
            return
        losses.add(self, self._by_hand(by), m.models(was) | (by & {m.WORLD}), self.place)

    def _by_hand(self, by: m.Marks) -> Kind:
        if m.NOISE in by and not by & {m.PROBS, m.LOGPROB, m.TOKENS}:
            return "other", 0.7, (m.NOISE,)
        if by & {m.WEIGHTED, m.JUDGED}:
            return losses.gradient(by, 0.8 if m.WEIGHTED in by else 0.6)
        return losses.imitation(self, by, 0.75)


def step_through(
    script: Script, files: Files, trace: Trace, argv: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Steps through a program; the command lines that it starts in turn."""
    machine = Machine(files, trace, argv, {**ENVIRONMENT, **environment})
    if script.tree is None:
        return []
    path = script.source.path
    scope = Scope({"__name__": constant("__main__"), "__file__": constant(path)})
    module = Module("__main__", path, scope)
    machine.module = module
    try:
        machine.run(script.tree.body, scope, module)
    except Spent:
        trace.cut = True
    return machine.launches
