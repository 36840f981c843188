"""Read what an agent's programs do from their source text, without running them.

`read_programs` is the only entry point: it traces all programs of an attempt in the order in which they ran.
The result decides no score; it explains how a submission was trained. See docs/design/program-reading.md.

    source_files, command_lines   parse files, command lines and shell scripts
    training_tools                parse the launches of command-line trainers
    marks, abstract_values        what is known of a value: a constant, its kind, where it comes from
    interpreter, statements, ...  step through a program with such values; code that is not reached is ignored
    *_calls, program_settings     effects of calls to well-known libraries
    program_reader                find out which programs ran and trace each of them

Values carry marks, such as "sampled from the model", "computed by judging a sample" or "a log-probability".
Training is detected where a gradient is taken. The marks of the loss decide what kind of training it is.
"""

from agent2rl.analysis.programs.abstract_values import CodeLocation
from agent2rl.analysis.programs.command_lines import ProgramLaunch
from agent2rl.analysis.programs.interpreter_core import DetectedStage, NotedSetting, WeightsHistory
from agent2rl.analysis.programs.program_reader import ObservedLaunch, ProgramReading, read_programs

__all__ = [
    "CodeLocation",
    "DetectedStage",
    "NotedSetting",
    "ObservedLaunch",
    "ProgramLaunch",
    "ProgramReading",
    "WeightsHistory",
    "read_programs",
]
