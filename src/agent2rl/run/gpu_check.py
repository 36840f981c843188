"""Whether CUDA starts in the sandbox. The driver can list GPUs that no program can use there.

Without this check, an agent whose GPUs do not work trains on the CPU, and nobody notices.
"""

from agent2rl.core.errors import Agent2RLError
from agent2rl.core.sandbox import Sandbox
from agent2rl.run.agent_python import run_in_sandbox

CUDA_HINT = (
    "`nvidia-smi` shows whether the driver works outside the sandbox. If it does, try another one with "
    "--sandbox, or run on the CPU: CUDA_VISIBLE_DEVICES= agent2rl run ..."
)
START_CUDA = """
import ctypes, sys
code = ctypes.CDLL("libcuda.so.1").cuInit(0)
print(f"cuInit returns error {code}")
sys.exit(code != 0)
"""


def find_gpu_failure(sandbox: Sandbox, gpus: tuple[str, ...] | None) -> str:
    """Start CUDA in the sandbox; return why that fails. Empty if it works, or if there is no GPU."""
    if not gpus:
        return ""
    try:
        ended, line = run_in_sandbox(sandbox, START_CUDA, gpus=gpus)
    except Agent2RLError as error:
        return error.message
    return "" if ended.code == 0 else line or ended.reason
