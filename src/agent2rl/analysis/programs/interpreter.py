"""Steps through one program."""

from collections.abc import Mapping, Sequence

from agent2rl.analysis.programs import hyperparameter_notes, loss_routes
from agent2rl.analysis.programs import marks as m
from agent2rl.analysis.programs.abstract_values import (
    AbstractValue,
    ModuleValue,
    NameScope,
    collect_marks,
    make_constant,
)
from agent2rl.analysis.programs.calls import CallInterpreter
from agent2rl.analysis.programs.interpreter_core import ProgramTooLong
from agent2rl.analysis.programs.loss_routes import RouteGuess
from agent2rl.analysis.programs.program_trace import ProgramTrace
from agent2rl.analysis.programs.source_files import AgentSourceFiles, PythonScript

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


class ProgramInterpreter(CallInterpreter):
    def _note_name(self, name: str, value: AbstractValue, scope: NameScope) -> None:  # noqa: ARG002
        hyperparameter_notes.note_name(self, name, value)

    def record_weight_update(self, before: AbstractValue, change: AbstractValue) -> None:
        """Weights that are moved by hand, along a gradient that was worked out by hand."""
        was, by = collect_marks(before), collect_marks(change)
        learnt = {m.DATA, m.SAID, m.TOKENS, m.WORLD, m.JUDGED, m.EXPERT}
        if m.WEIGHTS not in was or was & learnt or not by & learnt:
            return
        loss_routes.add_stage(
            self, self._classify_manual_update(by), m.select_models(was) | (by & {m.WORLD}), self.place
        )

    def _classify_manual_update(self, by: m.Marks) -> RouteGuess:
        if m.NOISE in by and not by & {m.PROBS, m.LOGPROB, m.TOKENS}:
            return "other", 0.7, (m.NOISE,)
        if by & {m.WEIGHTED, m.JUDGED}:
            return loss_routes.classify_policy_gradient(by, 0.8 if m.WEIGHTED in by else 0.6)
        return loss_routes.classify_imitation(self, by, 0.75)


def interpret_program(
    script: PythonScript,
    files: AgentSourceFiles,
    trace: ProgramTrace,
    argv: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Steps through a program; the command lines that it starts in turn."""
    machine = ProgramInterpreter(files, trace, argv, {**ENVIRONMENT, **environment})
    if script.tree is None:
        return []
    path = script.source.path
    scope = NameScope({"__name__": make_constant("__main__"), "__file__": make_constant(path)})
    module = ModuleValue("__main__", path, scope)
    machine.module = module
    try:
        machine.run_body(script.tree.body, scope, module)
    except ProgramTooLong:
        trace.cut = True
    return machine.launches
