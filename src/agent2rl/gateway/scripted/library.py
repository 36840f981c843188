"""Reads scripts: files, and those that come with the package. Errors name file, step and field."""

import re
import tomllib
from pathlib import Path

from pydantic import ValidationError

from agent2rl.core.errors import UserError
from agent2rl.gateway.scripted.script import Script

SHIPPED = Path(__file__).with_name("scripts")


def shipped() -> dict[str, str]:
    """The scripts that come with the package, and what they are about."""
    return {path.stem: load(path.stem).about for path in sorted(SHIPPED.glob("*.toml"))}


def load(name: str) -> Script:
    """A file, or a shipped script by name."""
    path = Path(name)
    if not path.is_file() and re.fullmatch(r"[\w-]+", name):
        path = SHIPPED / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(sorted(path.stem for path in SHIPPED.glob("*.toml")))
        raise UserError(f"There is no script {name!r}.", f"Give a TOML file, or one of: {known}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The script {name!r} cannot be read: {error}.") from error
    return parse(text, name)


def parse(text: str, name: str = "script") -> Script:
    """`name` is how errors call it."""
    try:
        return Script.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{name} is not TOML: {error}.") from error
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            said = "there is no such key"
        place = _place(first["loc"])
        raise UserError(f"{name}: {f'{place}: ' if place else ''}{said}.") from error


def _place(loc: tuple[int | str, ...]) -> str:
    """step 3: fail.status"""
    if loc[:1] == ("step",) and len(loc) > 1:
        field = ".".join(map(str, loc[2:]))
        return f"step {int(loc[1]) + 1}" + (f": {field}" if field else "")
    return ".".join(map(str, loc))
