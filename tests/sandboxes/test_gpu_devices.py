"""Device files of a sandbox's GPUs, on made-up machines and in the real sandbox."""

import os
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.core.errors import MachineError
from agent2rl.core.sandbox import Command
from agent2rl.sandboxes import gpu_devices
from agent2rl.sandboxes.gpu_devices import (
    DriverFiles,
    DriverGpu,
    MigInstance,
    list_device_mounts,
    renumber_visible_gpus,
)
from tests.helpers.sandbox_runner import SandboxRunner

CONTROL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
INFORMATION = """Model: \t\t NVIDIA H200
IRQ:   \t\t 310
GPU UUID: \t {uuid}
Bus Type: \t PCIe
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Excluded:\t No
"""
BUS_AND_MINORS = {"0000:0f:00.0": 1, "0000:2d:00.0": 0, "0000:44:00.0": 2}
"""Three GPUs. The first two in bus order have their minor numbers the other way round."""


@pytest.fixture
def files(tmp_path: Path) -> DriverFiles:
    """A machine with three GPUs. Regular files stand for device files."""
    machine = DriverFiles(tmp_path / "dev", tmp_path / "driver", lambda _: None, list)
    machine.devices.mkdir()
    names = (*CONTROL, "nvidia-modeset", "nvidia-nvswitch0", *(f"nvidia{n}" for n in (0, 1, 2)))
    for name in names:
        (machine.devices / name).write_text(name)
    for bus, minor in BUS_AND_MINORS.items():
        folder = machine.driver / "gpus" / bus
        folder.mkdir(parents=True)
        text = INFORMATION.format(uuid=f"GPU-{minor}aaa-bbb", bus=bus, minor=minor)
        (folder / "information").write_text(text)
    return machine


def list_names(gpus: tuple[str, ...] | None, files: DriverFiles) -> list[str]:
    return [mount.target.removeprefix("/dev/") for mount in list_device_mounts(gpus, files)]


def test_a_command_sees_the_control_files_and_its_own_gpu(files: DriverFiles) -> None:
    assert list_names(("2",), files) == [*CONTROL, "nvidia2"]


def test_numbers_follow_the_bus_and_not_the_minor_numbers(files: DriverFiles) -> None:
    assert list_names(("0",), files) == [*CONTROL, "nvidia1"]
    assert list_names(("2", "1"), files) == [*CONTROL, "nvidia2", "nvidia0"]


def test_a_gpu_can_be_named_by_the_start_of_its_uuid(files: DriverFiles) -> None:
    assert list_names(("GPU-2aaa",), files) == [*CONTROL, "nvidia2"]


@pytest.mark.parametrize("name", ["3", "GPU-9", "GPU-", "card"])
def test_a_gpu_that_is_missing_or_ambiguous_is_an_error(files: DriverFiles, name: str) -> None:
    with pytest.raises(MachineError, match="no GPU"):
        list_device_mounts((name,), files)


def test_no_gpu_means_no_device_file_and_none_means_all(files: DriverFiles) -> None:
    assert list_names((), files) == []
    assert {"nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-modeset"} <= {*list_names(None, files)}


def test_a_machine_without_a_driver_has_no_device_files(tmp_path: Path) -> None:
    assert list_device_mounts(("0",), DriverFiles(tmp_path, tmp_path)) == ()


def test_without_the_drivers_description_gpus_are_numbered_by_their_minor_numbers(
    files: DriverFiles, tmp_path: Path
) -> None:
    bare = DriverFiles(files.devices, tmp_path / "none", query_gpus=list)
    (files.devices / "nvidia0").unlink()
    assert list_names(("0",), bare) == [*CONTROL, "nvidia1"]


def test_a_container_that_has_a_part_of_the_gpus_numbers_those(files: DriverFiles) -> None:
    (files.devices / "nvidia1").unlink()
    assert list_names(("0", "1"), files) == [*CONTROL, "nvidia0", "nvidia2"]


def test_a_mig_instance_brings_its_gpu_and_its_own_capabilities_alone(files: DriverFiles) -> None:
    for path, minor in (("gi3/access", 30), ("gi3/ci0/access", 31), ("gi4/access", 39)):
        access = files.driver / "capabilities" / "gpu2" / "mig" / path
        access.parent.mkdir(parents=True, exist_ok=True)
        access.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
    shown = [*CONTROL, "nvidia2", "nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31"]
    new = DriverFiles(files.devices, files.driver, {"MIG-77": MigInstance("GPU-2aaa-bbb", 3, 0)}.get)
    assert list_names(("MIG-77",), new) == shown
    with pytest.raises(MachineError, match="no MIG instance"):
        list_device_mounts(("MIG-78",), new)
    assert gpu_devices.find_mig_instance("MIG-GPU-2aaa-bbb/3/0") == MigInstance("GPU-2aaa-bbb", 3, 0)


def test_gpus_are_numbered_from_zero_inside_and_mig_instances_keep_their_names(files: DriverFiles) -> None:
    def renumber(*gpus: str) -> str:
        command = Command(("python3",), {"CUDA_VISIBLE_DEVICES": ",".join(gpus)})
        return renumber_visible_gpus(command, gpus, files).environment["CUDA_VISIBLE_DEVICES"]

    assert renumber("3") == "0"
    assert renumber("5", "GPU-2aaa") == "0,1"
    assert renumber("MIG-77", "MIG-78") == "MIG-77,MIG-78"
    assert renumber() == ""
    assert renumber_visible_gpus(Command(("python3",)), ("3",), files).environment == {}


LIST_DEVICES = """
import os
names = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print(names, os.environ.get("CUDA_VISIBLE_DEVICES"))
try:
    open("/dev/nvidia0")
except OSError as error:
    print(type(error).__name__)
os.write(os.open("/dev/nvidia1", os.O_WRONLY), b"x")
"""


def test_the_real_sandbox_shows_the_device_nodes_of_its_gpus_and_hides_the_others(
    files: DriverFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links to /dev/null stand for device nodes, because only root could make some."""
    sandbox = registry.find_sandbox("bubblewrap")
    if sandbox.check().broken:
        pytest.skip("bubblewrap cannot run here")
    for path in files.devices.iterdir():
        path.unlink()
        path.symlink_to("/dev/null")
    monkeypatch.setattr(gpu_devices, "DriverFiles", lambda: files)
    cell = SandboxRunner(sandbox, tmp_path)
    command = Command(("python3", "-c", LIST_DEVICES), {"CUDA_VISIBLE_DEVICES": "GPU-1aaa"})
    ended = cell.run(command=command, gpus=("GPU-1aaa",))
    assert (ended.reason, ended.code) == ("exited", 0), cell.log
    assert cell.log.splitlines() == [f"{sorted([*CONTROL, 'nvidia1'])} 0", "FileNotFoundError"]
    assert os.path.exists(files.devices / "nvidia0")  # noqa: PTH110 (it is hidden, not gone)
    cell.run(command=Command(("ls", "/dev")), gpus=())
    assert cell.log.count("nvidiactl") == 1


def test_the_drivers_library_is_asked_where_the_driver_describes_too_few_gpus(files: DriverFiles) -> None:
    known = [DriverGpu(minor, f"{9 - minor}", f"GPU-{minor}ccc") for minor in range(3)]
    asked = DriverFiles(files.devices, files.driver / "none", query_gpus=lambda: known)
    assert list_names(("GPU-0ccc",), asked) == [*CONTROL, "nvidia0"]
    assert list_names(("0",), asked) == [*CONTROL, "nvidia2"]


def test_a_partitioned_gpu_as_a_whole_brings_the_capabilities_of_its_instances(files: DriverFiles) -> None:
    access = files.driver / "capabilities" / "gpu2" / "mig" / "gi3" / "access"
    access.parent.mkdir(parents=True)
    access.write_text("DeviceFileMinor: 30\n")
    (files.devices / "nvidia-caps").mkdir()
    (files.devices / "nvidia-caps" / "nvidia-cap30").touch()
    (files.devices / "nvidia-caps" / "nvidia-cap1").touch()
    assert list_names(("2",), files) == [*CONTROL, "nvidia2", "nvidia-caps/nvidia-cap30"]
