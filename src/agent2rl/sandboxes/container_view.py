"""What a command sees in a container, as mounts of the host's files.

A container engine mounts them parents first, and creates missing mount points in the image. Where a mount
point lies in something of the host's, it is created here, without following links. Covers and small files lie
in a directory of their own, which no mount shows.
"""

import csv
import io
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent2rl.core.sandbox import Enclosure, Mount
from agent2rl.sandboxes import supervise, view
from agent2rl.sandboxes.gpu_devices import list_device_mounts

MOUNT_TABLE = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class ContainerBind:
    source: Path
    writable: bool


class ContainerView(view.FileSystemView):
    """Collects mounts by their target. `directory` receives small files."""

    def __init__(self, hidden: Iterable[Path], directory: Path) -> None:
        super().__init__(hidden)
        self.binds: dict[PurePosixPath, ContainerBind] = {}
        self.devices: tuple[Mount, ...] = ()
        self.shared_memory_bytes = 0
        self._directory = directory
        self._covers: set[PurePosixPath] = set()
        self._mount_points = read_mount_points()

    def add_bind(self, source: Path, target: PurePosixPath, writable: bool) -> None:
        self._place(target, ContainerBind(view.real_path(source), writable))
        if writable:
            return
        # Some engines leave what is mounted below a read-only mount writable.
        shown = view.real_path(source)
        for point in self._mount_points:
            if shown in point.parents and not any(point.is_relative_to(path) for path in self.hidden):
                self.binds[target / point.relative_to(shown)] = ContainerBind(point, False)

    def add_cover(self, target: PurePosixPath, is_directory: bool) -> None:
        empty = self._make_directory() if is_directory else self._write_file("")
        self._place(target, ContainerBind(empty, False))
        self._covers.add(target)

    def add_link(self, target: PurePosixPath, leads_to: Path) -> None:
        """Nothing is to be done: the image has these links."""

    def add_text_file(self, target: PurePosixPath, content: str) -> None:
        self._place(target, ContainerBind(self._write_file(content), False))

    def add_kernel_files(self, enclosure: Enclosure) -> None:
        """Add the device files. The engine adds /proc, /dev and a read-only /sys."""
        self.shared_memory_bytes = view.limit_shared_memory(enclosure.limits.memory_bytes)
        if enclosure.role != "program":
            self.devices = list_device_mounts(enclosure.gpus)

    def make_mount_points(self, root: Path | None = None) -> None:
        """Create the mount points that lie in covers and in writable directories. Call this last.

        `root` is the directory that becomes the container's root, if that is one of the host's.
        """
        for target, bind in sorted(self.binds.items()):
            parent = next((path for path in target.parents if path in self.binds), None)
            if parent is None and root:
                supervise.make_mountpoint(root, target.relative_to("/"), bind.source)
            elif parent and (parent in self._covers or self.binds[parent].writable):
                supervise.make_mountpoint(self.binds[parent].source, target.relative_to(parent), bind.source)

    def make_mount_options(self) -> list[str]:
        """Return the mounts as options of an engine's command line, parents first."""
        binds = sorted(self.binds.items(), key=lambda item: (len(item[0].parts), item[0]))
        return [_format_mount(bind, target) for target, bind in binds]

    def _place(self, target: PurePosixPath, bind: ContainerBind) -> None:
        """Mount something in place of all that was mounted there or below."""
        self.binds = {path: other for path, other in self.binds.items() if not path.is_relative_to(target)}
        self._covers = {path for path in self._covers if not path.is_relative_to(target)}
        self.binds[target] = bind

    def _make_directory(self) -> Path:
        place = Path(tempfile.mkdtemp(dir=self._directory))
        place.chmod(0o755)
        return place

    def _write_file(self, content: str) -> Path:
        descriptor, name = tempfile.mkstemp(dir=self._directory)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(0o444)
        return Path(name)


def _format_mount(bind: ContainerBind, target: PurePosixPath) -> str:
    """Return a mount option, which is a line of CSV: a path may contain commas."""
    line = io.StringIO()
    fields = ["type=bind", f"source={bind.source}", f"destination={target}"]
    csv.writer(line, lineterminator="").writerow([*fields, *([] if bind.writable else ["ro"])])
    return f"--mount={line.getvalue()}"


def read_mount_points() -> list[Path]:
    """Return the mount points of this process, parents first."""
    points = []
    with suppress(FileNotFoundError):
        for line in MOUNT_TABLE.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            name = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), line.split()[4])
            points.append(Path(name))
    return sorted(set(points))
