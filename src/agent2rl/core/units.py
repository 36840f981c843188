"""Quantities and names as people write them."""

import re

BYTES = {"M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_byte_size(text: str) -> int:
    """512M, 16G or 1.5T in bytes; a ValueError where it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])i?B?", text)
    if not match or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a size. Write 512M, 16G or 1T.")
    return int(float(match[1]) * BYTES[match[2]])


PATH = re.compile(r"(^|:)(?:~|\.{0,2})/(?:[^:]*/)?([^/:]+)/?$")


def strip_path(name: str) -> str:
    """What a run calls something; of a path of the machine that it ran on, its last part."""
    return PATH.sub(r"\1\2", name)
