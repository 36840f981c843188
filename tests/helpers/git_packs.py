"""Git packs, written by hand so that they can be wrong."""

import hashlib
import io
import zlib

from dulwich.pack import write_pack_index_v2


def make_pack(*objects: tuple[int, int, bytes]) -> tuple[bytes, list[int]]:
    """A pack of objects (kind, size as declared, content), and where each begins."""
    pack, places = b"PACK" + (2).to_bytes(4, "big") + len(objects).to_bytes(4, "big"), []
    for kind, size, content in objects:
        places.append(len(pack))
        first, rest = kind << 4 | size & 15, size >> 4
        header = []
        while rest:
            header.append(first | 0x80)
            first, rest = rest & 0x7F, rest >> 7
        pack += bytes([*header, first]) + zlib.compress(content, 9)
    return pack + hashlib.sha1(pack).digest(), places


def make_index(places: list[int]) -> bytes:
    entries = sorted((hashlib.sha1(str(place).encode()).digest(), place, 0) for place in places)
    file = io.BytesIO()
    write_pack_index_v2(file, entries, b"\0" * 20)
    return file.getvalue()
