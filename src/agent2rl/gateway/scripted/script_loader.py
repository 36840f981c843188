"""Reads scripts: files, and those that come with the package. Errors name file, step and field."""

import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.gateway.scripted.script import DriverScript

SHIPPED_FOLDER = Path(__file__).with_name("scripts")
UNION_MEMBER = re.compile(r"(constrained-)?(int|str|float)|literal\[.*\]")


def list_shipped_scripts() -> dict[str, str]:
    """The scripts that come with the package, and what they are about."""
    return {path.stem: load_script(path.stem).about for path in sorted(SHIPPED_FOLDER.glob("*.toml"))}


def load_script(name: str) -> DriverScript:
    """A file, or a shipped script by name."""
    path = Path(name)
    if not path.is_file() and re.fullmatch(r"[\w-]+", name):
        path = SHIPPED_FOLDER / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(sorted(path.stem for path in SHIPPED_FOLDER.glob("*.toml")))
        raise UserError(f"There is no script {name!r}.", f"Give a TOML file, or one of: {known}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {name!r} cannot be read: {error}.") from error
    return parse_script(text, name)


def parse_script(text: str, name: str = "script") -> DriverScript:
    """`name` is how errors call it."""
    try:
        return DriverScript.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}.") from error
    except ValidationError as error:
        faults = [
            (_format_location(fault["loc"]), _format_fault(fault["type"], fault["msg"]))
            for fault in error.errors()
        ]
        place = faults[0][0]
        said = ", or: ".join(words for where, words in faults if where == place)
        raise UserError(f"{name}: {f'{place}: ' if place else ''}{said}.") from error


def _format_fault(kind: str, message: str) -> str:
    return "there is no such key" if kind == "extra_forbidden" else message.removeprefix("Value error, ")


def _format_location(loc: tuple[int | str, ...]) -> str:
    """step 3: fail.status, without what pydantic calls the ways in which it could have been right."""
    loc = tuple(part for part in loc if not UNION_MEMBER.fullmatch(str(part)))
    if loc[:1] == ("step",) and len(loc) > 1:
        field = ".".join(map(str, loc[2:]))
        return f"step {int(loc[1]) + 1}" + (f": {field}" if field else "")
    return ".".join(map(str, loc))
