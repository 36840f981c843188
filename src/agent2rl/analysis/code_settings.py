"""Hyperparameters and data of an attempt, from the code that ran and from its command lines.

Only what a program reaches counts, with the value that it has there; the command line goes before a default,
and what a trainer or an optimiser is given before a constant of the same name. Not covered: values that a
program works out from what it measures.
"""

from agent2rl.analysis.attempts import AttemptSpan
from agent2rl.analysis.evidence import EvidenceBook
from agent2rl.analysis.findings import Setting
from agent2rl.analysis.programs import program_reading as programs
from agent2rl.analysis.programs import source_files
from agent2rl.analysis.programs.program_reading import ProgramReading
from agent2rl.analysis.programs.program_trace import NotedSetting

MOST_SETTINGS = 60
ALL_COUNT = ("data", "optimizer")
"""Of which a training may have several."""


def find_settings(span: AttemptSpan, book: EvidenceBook) -> tuple[Setting, ...]:
    reading = programs.read_programs(span)
    trained = {stage.launch for stage in reading.trace.stages}
    noted = [each for each in reading.trace.noted.values() if not trained or each.launch in trained]
    kept: dict[tuple[str, str], Setting] = {}
    for each in noted:
        if _takes_precedence(each, noted):
            key = each.name, repr(each.value)
            cited = _cite_setting(each, span, reading, book)
            before = kept.get(key)
            source = "command" if each.on_command_line else "code"
            evidence = tuple(dict.fromkeys([*(before.evidence if before else ()), *cited]))[:3]
            kept[key] = Setting(
                name=each.name,
                value=each.value,
                source=before.source if before else source,
                evidence=evidence,
            )
    return tuple(sorted(kept.values(), key=lambda setting: setting.name)[:MOST_SETTINGS])


def _takes_precedence(each: NotedSetting, every: list[NotedSetting]) -> bool:
    """Whether no other value of the same name in the same program counts more."""
    rivals = [other for other in every if other.name == each.name and other.launch == each.launch]
    return each.name in ALL_COUNT or each.weight == max(other.weight for other in rivals)


def _cite_setting(
    each: NotedSetting, span: AttemptSpan, reading: ProgramReading, book: EvidenceBook
) -> list[str]:
    cited = []
    files = {source.path: source for source in span.sources}
    if each.place and each.place.path in files:
        line, text = source_files.parse_script(files[each.place.path]).locate_line(each.place.line)
        cited.append(book.add_evidence("code", files[each.place.path].cite_line(line), text))
    process = reading.began[each.launch].process if each.launch < len(reading.began) else None
    if process and (each.on_command_line or not cited):
        cited.append(book.add_evidence("event", f"process {process.pid}", process.command, process.began))
    return cited
