"""Parse command lines and shell scripts into program launches.

Of the shell language, only sequences of commands, variables, loops over words and here-documents are covered.
Conditional commands are assumed to run.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent2rl.analysis.program_names import LAUNCHERS, PYTHON, SHELLS
from agent2rl.analysis.programs.source_files import AgentSourceFiles

LONGEST, MOST, MOST_LINES, DEEPEST = 100_000, 60, 2000, 4
WRAPPERS = {
    "nohup", "time", "nice", "setsid", "stdbuf", "env", "sudo", "exec", "ionice", "xvfb-run", "then", "do",
    "else", "if", "!", "{", "(", "command", "eval", "while", "until", "elif", "caffeinate",
}  # fmt: skip
WRAPPER_VALUES = {
    "timeout": 1,
    "uv": 1,
    "poetry": 1,
    "conda": 3,
    "taskset": 2,
    "numactl": 0,
    "srun": 0,
    "flock": 1,
}
"""Wrapper commands, with the number of their own arguments."""
NOTEBOOKS = {"jupyter", "papermill", "runipy", "nbconvert"}
ASSIGNED = re.compile(r"^(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$", re.S)
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=]([^}]*))?\}|(\w+))")
LOOP = re.compile(r"^\s*for\s+(\w+)\s+in\s+(.+?)\s*(?:;\s*do\b|$)")
HERE = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
OPERATORS = {";", "&&", "||", "|", "&", ";;", "|&"}


@dataclass(frozen=True)
class ProgramLaunch:
    """The launch of a program."""

    kind: Literal["script", "code", "tool", "copy", "shell"]
    name: str
    """Path of a script, name of a tool, or the code of `python -c`."""
    argv: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class ShellState:
    """State of a shell while its script is parsed."""

    files: AgentSourceFiles
    variables: dict[str, str]
    near: str = ""
    depth: int = 0
    lines: int = 0
    launches: list[ProgramLaunch] = field(default_factory=list)


def parse_command(
    command: str, files: AgentSourceFiles, variables: Mapping[str, str] | None = None, near: str = ""
) -> list[ProgramLaunch]:
    """Return what a command line launches. A shell script is one launch; see `expand_shell_script`."""
    words = _split_words(command)
    return list(_strip_wrappers(words, ShellState(files, dict(variables or {}), near)))[:MOST]


def expand_shell_script(launch: ProgramLaunch, files: AgentSourceFiles) -> list[ProgramLaunch]:
    """Return what a shell script, or the text of `sh -c`, launches."""
    source = files.sources.get(launch.name)
    text = source.text if source else launch.name
    variables = dict(launch.environment)
    variables |= {str(number): word for number, word in enumerate(launch.argv, start=1)}
    variables |= {"@": " ".join(launch.argv)}
    near = launch.name.rpartition("/")[0] if source else ""
    shell = ShellState(files, variables, near)
    _read_script(text[:LONGEST], shell)
    return shell.launches[:MOST]


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _strip_wrappers(words: list[str], shell: ShellState) -> Iterator[ProgramLaunch]:
    environment: dict[str, str] = {}
    while words:
        name = words[0].rpartition("/")[2]
        if (match := ASSIGNED.match(words[0])) and words[0] == match[0]:
            environment[match[1]] = match[2]
            words = words[1:]
        elif name in WRAPPERS:
            words = words[1:]
            while words and words[0].startswith("-"):
                words = words[2:] if words[0] in ("-n", "-u", "-o", "-e") else words[1:]
        elif name in WRAPPER_VALUES:
            rest = [word for word in words[1:] if not word.startswith("-")]
            command = rest[WRAPPER_VALUES[name] :]
            words = words[words.index(command[0]) :] if command else []
        else:
            break
    if words:
        yield from _parse_program(words, tuple(environment.items()), shell)


def _parse_program(
    words: list[str], environment: tuple[tuple[str, str], ...], shell: ShellState
) -> Iterator[ProgramLaunch]:
    name, rest = words[0].rpartition("/")[2], words[1:]
    if PYTHON.match(words[0]):
        yield from _parse_python(rest, environment, shell)
    elif name in LAUNCHERS:
        yield from _parse_launcher(rest, environment, shell)
    elif name in NOTEBOOKS:
        book = next((word for word in rest if word.endswith(".ipynb")), None)
        if book and (source := shell.files.find_file(book, shell.near)):
            yield ProgramLaunch("script", source.path, (), environment)
    elif name in SHELLS:
        yield from _parse_shell(rest, environment, shell)
    elif name in ("cp", "mv", "ln", "rsync"):
        paths = [word for word in rest if not word.startswith("-")]
        if len(paths) > 1:
            yield ProgramLaunch("copy", paths[-2].rstrip("/.*"), (paths[-1],))
    elif words[0].endswith((".sh", ".py")) and (source := shell.files.find_file(words[0], shell.near)):
        kind: Literal["shell", "script"] = "shell" if words[0].endswith(".sh") else "script"
        yield ProgramLaunch(kind, source.path, tuple(rest), environment)
    else:
        yield ProgramLaunch("tool", name, tuple(rest), environment)


def _parse_python(
    rest: list[str], environment: tuple[tuple[str, str], ...], shell: ShellState
) -> Iterator[ProgramLaunch]:
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        rest = rest[2:] if rest[0] in ("-X", "-W") else rest[1:]
    if not rest:
        return
    first, after = rest[0], rest[1:]
    if first == "-c":
        if after:
            yield ProgramLaunch("code", after[0], tuple(after[1:]), environment)
    elif first == "-m":
        yield from _parse_module(after, environment, shell)
    elif first != "-":
        name = first.rpartition("/")[2]
        source = (
            None if "/bin/" in first or "-packages/" in first else shell.files.find_file(first, shell.near)
        )
        if source:
            yield ProgramLaunch("script", source.path, tuple(after), environment)
        elif not first.endswith(".py"):
            yield from _parse_program(
                [name, *after], environment, shell
            )  # the script of an installed command
        else:
            yield ProgramLaunch("tool", first, tuple(after), environment)


def _parse_module(
    words: list[str], environment: tuple[tuple[str, str], ...], shell: ShellState
) -> Iterator[ProgramLaunch]:
    if not words:
        return
    name, rest = words[0], words[1:]
    if name in LAUNCHERS:
        yield from _parse_launcher(rest, environment, shell)
        return
    source = shell.files.find_module(name, shell.near) or shell.files.find_module(
        f"{name}.__main__", shell.near
    )
    yield ProgramLaunch(
        "script" if source else "tool", source.path if source else name, tuple(rest), environment
    )


def _parse_launcher(
    rest: list[str], environment: tuple[tuple[str, str], ...], shell: ShellState
) -> Iterator[ProgramLaunch]:
    """Parse what follows the launcher's own options."""
    for number, word in enumerate(rest):
        if word in ("-m", "--module") and number + 1 < len(rest):
            yield from _parse_module(rest[number + 1 :], environment, shell)
            return
        if word.endswith(".py"):
            yield from _parse_python(rest[number:], environment, shell)
            return


def _parse_shell(
    rest: list[str], environment: tuple[tuple[str, str], ...], shell: ShellState
) -> Iterator[ProgramLaunch]:
    if any(re.fullmatch(r"-\w*c", word) for word in rest[:3]):
        texts = [word for word in rest if not re.fullmatch(r"-\w+", word)]
        if texts:
            yield ProgramLaunch("shell", texts[0], tuple(texts[2:]), environment)
        return
    words = [word for word in rest if not word.startswith("-")]
    if words and (source := shell.files.find_file(words[0], shell.near)):
        yield ProgramLaunch("shell", source.path, tuple(words[1:]), environment)


def _read_script(text: str, shell: ShellState) -> None:
    lines = text.replace("\\\n", " ").split("\n")
    number = 0
    while number < len(lines) and len(shell.launches) < MOST and shell.lines < MOST_LINES:
        line = lines[number]
        number += 1
        shell.lines += 1
        if here := HERE.search(line):
            end = next((n for n in range(number, len(lines)) if lines[n].strip() == here[2]), len(lines))
            _read_heredoc(line[: here.start()], "\n".join(lines[number:end]), shell)
            number = end + 1
            continue
        if loop := LOOP.match(line):
            number = _unroll_loop(loop, lines, number, shell)
            continue
        _read_line(line, shell)


def _read_heredoc(line: str, text: str, shell: ShellState) -> None:
    """Parse a here-document for Python or a shell."""
    words = [word for word in _split_words(_expand_variables(line, shell)) if word]
    name = words[0].rpartition("/")[2] if words else ""
    if words and PYTHON.match(words[0]):
        shell.launches.append(ProgramLaunch("code", text))
    elif name in SHELLS and shell.depth < DEEPEST:
        shell.depth += 1
        _read_script(text, shell)
        shell.depth -= 1


def _unroll_loop(loop: re.Match[str], lines: list[str], number: int, shell: ShellState) -> int:
    """Parse `for name in words; do … done` once for each word; return the line after it."""
    end, depth = number, 0
    inline = lines[number - 1][loop.end() :]
    if re.search(r"\bdone\b", inline):
        body = [re.split(r"\bdone\b", inline)[0]]
    else:
        while end < len(lines):
            stripped = lines[end].strip()
            depth += stripped.startswith(("for ", "while ", "until "))
            if re.match(r"done\b", stripped):
                if not depth:
                    break
                depth -= 1
            end += 1
        body = [inline, *lines[number:end]]
        end += 1
    words = _split_words(_expand_variables(loop[2].rstrip(";"), shell))[:8]
    if shell.depth < DEEPEST:
        shell.depth += 1
        for word in words:
            shell.variables[loop[1]] = word
            _read_script("\n".join(body), shell)
        shell.depth -= 1
    return end


def _read_line(line: str, shell: ShellState) -> None:
    for words in _split_commands(_expand_variables(line, shell)):
        assigned = [match for word in words if (match := ASSIGNED.match(word))]
        if words[0] in ("export", "local", "readonly", "declare") or len(assigned) == len(words):
            shell.variables |= {match[1]: match[2] for match in assigned}
            continue
        for launch in _strip_wrappers(words, shell):
            variables = tuple({**shell.variables, **dict(launch.environment)}.items())
            environment = tuple(
                (name, value) for name, value in variables if not name.isdigit() and name != "@"
            )
            shell.launches.append(ProgramLaunch(launch.kind, launch.name, launch.argv, environment))


def _expand_variables(line: str, shell: ShellState) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        if name in shell.variables:
            return shell.variables[name]
        return match[2] if match[2] is not None else match[0] if name.isupper() else ""

    return VARIABLE.sub(value, line.replace("$@", shell.variables.get("@", "")))


def _split_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line as lists of words, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    try:
        for word in lexer:
            if word in OPERATORS:
                if words:
                    yield words
                words, skip = [], False
            elif set(word) <= {"<", ">", "&"}:
                skip = True
            elif skip:
                skip = False
            else:
                words.append(word)
    except ValueError:
        words = line.split()
    if words:
        yield words
