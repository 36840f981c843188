"""Parse and format byte sizes, and shorten names the way people write them."""

import re

BYTES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_byte_size(text: str) -> int:
    """Return the bytes of a size such as 512M, 16G or 1.5T; raise ValueError if it is invalid."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])i?B?", text)
    if not match or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a valid size. Write it as 512M, 16G or 1T.")
    return int(float(match[1]) * BYTES[match[2]])


def format_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


PATH = re.compile(r"(^|:)(?:~|\.{0,2})/(?:[^:]*/)?([^/:]+)/?$")


def strip_path(name: str) -> str:
    """Return the name that a run shows: paths of this machine are cut to their last part."""
    return PATH.sub(r"\1\2", name)
