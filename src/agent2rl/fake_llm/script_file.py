"""The script file: its TOML format, and loading one from a path or from the scripts that ship.

    [[step]]
    label = "train"
    shell = "python code/train.py"

    [[step]]
    when = 'loss (?P<loss>[0-9.]+)'      # searched in the last command's output; else the next step
    end = "It came to {{loss}}."

Errors name file, step and field.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from agent2rl.core.errors import UserError
from agent2rl.core.llm import TokenCounts
from agent2rl.core.records import Record

# The format: a TOML file of steps, each the answer to one request of the agent

CAPTURE_SLOT = re.compile(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}")
"""Placeholder for a captured group."""
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$", max_length=60)]
Times = Annotated[int, Field(ge=1)] | Literal["always"]
ProviderErrorName = Literal["overloaded", "context-too-long"]
DEFAULT_USAGE = TokenCounts(input=100, output=10)


class FileToWrite(Record):
    path: Text
    text: str
    """A final newline is added if there is none."""


class ScriptCall(Record):
    """One of: a shell command, a file to write, any tool by name."""

    shell: Text | None = None
    """Runs in the agent's own shell tool."""
    write_file: FileToWrite | None = None
    """Written by a shell command."""
    tool: Text | None = None
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of `tool`."""
    timeout: Annotated[float, Field(gt=0)] | None = None
    """Timeout of the command in seconds, if the agent's tool supports one."""

    @property
    def kinds(self) -> list[str]:
        return [name for name in ("shell", "write_file", "tool") if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _check_single_call(self) -> Self:
        if len(self.kinds) > 1:
            raise ValueError(f"{' and '.join(self.kinds)} are two calls: put them into `calls`")
        if self.arguments and self.tool is None:
            raise ValueError("`arguments` needs a `tool`")
        if self.timeout is not None and not (self.shell or self.write_file):
            raise ValueError("`timeout` needs a shell command")
        if "\0" in (self.shell or "") + (self.write_file.text if self.write_file else ""):
            raise ValueError("a shell command cannot contain a zero byte")
        return self


class ScriptedFailure(Record):
    """Answer with an error first."""

    status: Annotated[int, Field(ge=400, le=599)] | ProviderErrorName
    """`overloaded` and `context-too-long` are the errors of each provider in that case."""
    times: Times = 1
    midway: bool = False
    """Fail after half of the answer, if it is a stream."""
    retry_after: Annotated[int, Field(ge=0)] | None = None
    message: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        return {"status": value} if isinstance(value, int | str) else value


class StepCondition(Record):
    """Patterns that must match; their named groups are captured."""

    result: re.Pattern[str] | None = None
    """Searched in the results of the last calls; without calls, in the agent's messages since."""
    user: re.Pattern[str] | None = None
    """Searched in the last user message: the prompt."""

    @property
    def names(self) -> set[str]:
        patterns = (self.result, self.user)
        return {name for pattern in patterns if pattern for name in pattern.groupindex}

    @model_validator(mode="before")
    @classmethod
    def _expand_short_form(cls, value: Any) -> Any:
        return {"result": value} if isinstance(value, str) else value


class ScriptStep(ScriptCall):
    label: Label | None = None
    when: StepCondition | None = None
    """Play this step only if this matches; else go to `else`, or to the next step."""
    otherwise: Label | None = Field(None, alias="else")
    think: Text | None = None
    say: Text | None = None
    calls: tuple[ScriptCall, ...] = ()
    """Several calls in one answer."""
    end: Text | None = None
    """Final message, after which the agent ends."""
    wait: Seconds = 0.0
    """Delay before the first byte."""
    pause: Seconds = 0.0
    """Delay in the middle of the answer."""
    fail: ScriptedFailure | None = None
    hang: Times | None = None
    """Number of requests that are never answered."""
    cut: Times | None = None
    """Number of answers that break off in the middle."""
    usage: TokenCounts | None = None
    until: StepCondition | None = None
    """Repeat this step until the result matches."""
    most: Annotated[int, Field(ge=1)] = 100
    """Maximum number of repetitions; then continue with the next step."""
    goto: Label | None = None
    """The step after this one."""

    @property
    def asks(self) -> tuple[ScriptCall, ...]:
        return (self, *self.calls) if self.kinds else self.calls

    @property
    def speaks(self) -> bool:
        return bool(self.say or self.end or self.asks)

    @property
    def fails(self) -> bool:
        return bool(self.fail or self.hang)

    @property
    def texts(self) -> list[str]:
        """All texts that may contain placeholders."""
        texts = [text for text in (self.think, self.say, self.end) if text]
        for call in self.asks:
            file_texts = (call.write_file.path, call.write_file.text) if call.write_file else ()
            texts += [text for text in (call.shell, *file_texts) if text]
            texts += _collect_strings(call.arguments)
        return texts

    @model_validator(mode="after")
    def _check_step(self) -> Self:
        if any(not call.kinds for call in self.calls):
            raise ValueError("each of `calls` needs a shell, a write_file or a tool")
        if self.end and (self.say or self.asks):
            raise ValueError("`end` is the whole answer: put other texts and calls into a step before it")
        if self.think and not self.speaks:
            raise ValueError("`think` needs say, end or a call")
        if not self.speaks and (self.cut or (self.fail and self.fail.midway)):
            raise ValueError("an interrupted answer needs a text: say, end or a call")
        if not (self.speaks or self.fails or self.goto):
            raise ValueError(
                "the step is empty: give it say, shell, write_file, tool, calls, end, fail, hang or goto"
            )
        if self.until and not self.speaks:
            raise ValueError("`until` needs an answer to repeat: say or a call")
        if self.otherwise and not self.when:
            raise ValueError("`else` needs a `when`")
        if self.usage:
            _check_usage(self.usage)
        return self


class DriverScript(Record):
    about: str = ""
    audience: Literal["agents", "anyone"] = "agents"
    """Which requests advance the script: those that offer a shell, or all. Others get a short answer."""
    sessions: Literal["apart", "joined"] = "apart"
    """Whether a new conversation starts the script over or continues where the previous one was."""
    usage: TokenCounts = DEFAULT_USAGE
    """Usage of each answer whose step sets none."""
    step: Annotated[tuple[ScriptStep, ...], Field(min_length=1)]

    def find_step(self, label: str) -> int:
        return next(number for number, step in enumerate(self.step) if step.label == label)

    @model_validator(mode="after")
    def _check_references(self) -> Self:
        _check_usage(self.usage)
        labels = [step.label for step in self.step if step.label]
        captured = set[str]()
        for step in self.step:
            captured |= (step.when.names if step.when else set()) | (
                step.until.names if step.until else set()
            )
        for number, step in enumerate(self.step, 1):
            for label in (step.otherwise, step.goto):
                if label and label not in labels:
                    raise ValueError(
                        f"step {number}: there is no step {label!r}; labels: {_join_words(labels)}"
                    )
            for name in sorted(
                {name for text in step.texts for name in CAPTURE_SLOT.findall(text)} - captured
            ):
                raise ValueError(
                    f"step {number}: nothing captures {name!r}; groups (?P<name>…) of when and until: "
                    + _join_words(sorted(captured))
                )
        for label in {label for label in labels if labels.count(label) > 1}:
            raise ValueError(f"two steps are labelled {label!r}")
        return self


def _check_usage(tokens: TokenCounts) -> None:
    if min(tokens.model_dump().values()) < 0:
        raise ValueError("usage: tokens must not be negative")
    if tokens.cached + tokens.written > tokens.input:
        raise ValueError(
            "usage: `input` includes `cached` and `written`, so it cannot be less than their sum"
        )
    if tokens.written_hour > tokens.written:
        raise ValueError("usage: `written` includes `written_hour`, so it cannot be less")
    if tokens.reasoning > tokens.output:
        raise ValueError("usage: `output` includes `reasoning`, so it cannot be less")


def _collect_strings(value: JsonValue) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [text for part in value for text in _collect_strings(part)] if isinstance(value, list) else []


def _join_words(words: list[str]) -> str:
    return ", ".join(words) or "none"


# Loading scripts. Errors name file, step and field.

SHIPPED_FOLDER = Path(__file__).with_name("scripts")
UNION_MEMBER = re.compile(r"(constrained-)?(int|str|float)|literal\[.*\]")


def list_shipped_scripts() -> dict[str, str]:
    """Return the scripts that ship with the package, and their descriptions."""
    return {path.stem: load_script(path.stem).about for path in sorted(SHIPPED_FOLDER.glob("*.toml"))}


def load_script(name: str) -> DriverScript:
    """Load a script from a file, or a shipped one by name."""
    path = Path(name)
    if not path.is_file() and re.fullmatch(r"[\w-]+", name):
        path = SHIPPED_FOLDER / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        shipped = ", ".join(sorted(path.stem for path in SHIPPED_FOLDER.glob("*.toml")))
        raise UserError(f"There is no script {name!r}.", f"Give a TOML file, or one of: {shipped}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {name!r} cannot be read: {error}.") from error
    return parse_script(text, name)


def parse_script(text: str, name: str = "script") -> DriverScript:
    """Parse a script; `name` identifies it in errors."""
    try:
        return DriverScript.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}.") from error
    except ValidationError as error:
        faults = [
            (_format_location(fault["loc"]), _format_fault(fault["type"], fault["msg"]))
            for fault in error.errors()
        ]
        location = faults[0][0]
        message = ", or: ".join(words for where, words in faults if where == location)
        raise UserError(f"{name}: {f'{location}: ' if location else ''}{message}.") from error


def _format_fault(kind: str, message: str) -> str:
    return "there is no such key" if kind == "extra_forbidden" else message.removeprefix("Value error, ")


def _format_location(loc: tuple[int | str, ...]) -> str:
    """Format a location such as "step 3: fail.status", without pydantic's names of union members."""
    loc = tuple(part for part in loc if not UNION_MEMBER.fullmatch(str(part)))
    if loc[:1] == ("step",) and len(loc) > 1:
        field = ".".join(map(str, loc[2:]))
        return f"step {int(loc[1]) + 1}" + (f": {field}" if field else "")
    return ".".join(map(str, loc))
