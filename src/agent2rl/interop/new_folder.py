"""Write a folder as a whole: it appears when it is complete, and not at all after an error."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent2rl.core.errors import UserError


@contextmanager
def create_folder(target: Path) -> Iterator[Path]:
    """Yield a directory to fill, which becomes `target` at the end. Only an empty folder is replaced."""
    target = target.absolute()
    if os.path.lexists(target) and (target.is_symlink() or not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target} already exists.", "Choose a folder that does not exist yet: -o FOLDER.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise UserError(f"Cannot write to {target.parent}: {error.strerror}.") from error
    try:
        yield draft
        draft.chmod(0o755)
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
