"""Programs that attack whoever judges them, by class, and a pool in real sandboxes to try them in.

Each is the whole of `solve`, which should return its argument plus one and never does so honestly.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agent2rl import registry
from agent2rl.core.records import Limits
from agent2rl.evaluators.code_tests.pool import Job, Pool
from agent2rl.grading.programs import Programs

REFERENCE = "def solve(x):\n    return x + 1\n"
TEST = "def check(candidate):\n    assert candidate(1) == 2\n    assert candidate(10) == 11\n"
MIB = 1 << 20


@contextlib.contextmanager
def sandboxed_pool(home: Path, count: int = 2) -> Iterator[Pool]:
    limits = Limits(memory_bytes=4096 * MIB, disk_bytes=1024 * MIB, processes=64)
    with (
        Programs(registry.sandbox("bubblewrap"), count, home, limits) as programs,
        Pool(programs.sockets) as pool,
    ):
        yield pool


def job(program: str, test: str = TEST, reference: str = REFERENCE, entry: str = "solve") -> Job:
    return Job(program, entry, reference, test)


ALWAYS_EQUAL = """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __add__(self, other): return self
    __radd__ = __sub__ = __rsub__ = __getitem__ = __add__
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __iter__(self): return iter([])
    def __len__(self): return 0
"""
RAW_SYSTEM_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    done = libc.syscall(*arguments)
    if done < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return done
"""

HOSTILE: dict[str, dict[str, str]] = {
    "forge": {
        "walks the frames for the tests": """
import sys
def solve(x):
    frame = sys._getframe()
    while frame:
        for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
            if name == "result" and hasattr(value, "append"):
                value.append("passed")
            if name == "check":
                frame.f_globals["check"] = lambda candidate: None
        frame = frame.f_back
    return None
""",
        "returns what equals everything": ALWAYS_EQUAL + "def solve(x):\n    return Yes()\n",
        "returns an int that equals everything": """
class Int(int):
    def __eq__(self, other): return True
    def __hash__(self): return 0
def solve(x):
    return Int(0)
""",
        "returns a list whose items equal everything": ALWAYS_EQUAL + "def solve(x):\n    return [Yes()]\n",
        "writes verdicts to every descriptor": """
import os
def solve(x):
    for fd in range(64):
        for text in (b"passed", b'{"passed": true, "note": ""}\\n', b"\\0\\0\\0\\1RT", b"\\0\\0\\0\\1YN"):
            try:
                os.write(fd, text)
            except OSError:
                pass
    return None
""",
        "answers before it is asked": """
import os
for _ in range(100):
    os.write(3, b"\\0\\0\\0\\1YN" + b"\\0\\0\\0\\1RT")
def solve(x):
    return None
""",
        "sends a frame that never ends": """
import os
def solve(x):
    os.write(3, (4 << 20).to_bytes(4, "big") + b"R" + b"[" * 1000)
    while True:
        pass
""",
        "sends a frame of four gigabytes": "import os\ndef solve(x):\n    os.write(3, b'\\xff\\xff\\xff\\xffR')\n",
        "sends a value nested without end": """
import os
def solve(x):
    body = b"[\\1\\0\\0\\0" * 500000 + b"N"
    data = len(body).to_bytes(4, "big") + b"R" + body
    while data:
        data = data[os.write(3, data):]
""",
        "sends a tag that nobody knows": """
import os
def solve(x):
    os.write(3, b"\\0\\0\\0\\5Rc\\1\\0\\0\\0")
""",
        "replaces the server's own functions": """
import sys
for name, module in list(sys.modules.items()):
    if "agent2rl" in name or name == "json":
        for attribute in dir(module):
            if callable(getattr(module, attribute, None)):
                try:
                    setattr(module, attribute, lambda *a, **k: {"returned": True, "passed": True})
                except Exception:
                    pass
def solve(x):
    return True
""",
        "raises what the tests could take for success": "def solve(x):\n    raise SystemExit(0)\n",
    },
    "kill": {
        "exits": "import os\ndef solve(x):\n    os._exit(0)\n",
        "kills its parent": "import os\ndef solve(x):\n    os.kill(os.getppid(), 9)\n    return 0\n",
        "kills everybody": "import os\ndef solve(x):\n    os.kill(-1, 9)\n    return 0\n",
        "kills each process by number": """
import os
def solve(x):
    for pid in range(1, 400):
        try:
            os.kill(pid, 9)
        except OSError:
            pass
    return 0
""",
        "crashes the interpreter": "import ctypes\ndef solve(x):\n    ctypes.string_at(0)\n",
        "gives its parent no processor time": """
import os, resource
def solve(x):
    resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (0, 0))
    return 0
""",
        "traces its parent": RAW_SYSTEM_CALL
        + "import os\ndef solve(x):\n    return call(101, 16, os.getppid(), 0, 0)\n",
        "has a signal sent by the kernel": """
import fcntl, os
def solve(x):
    fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())
    fcntl.fcntl(3, fcntl.F_SETFL, os.O_ASYNC)
    return 0
""",
    },
    "hang": {
        "loops": "def solve(x):\n    while True:\n        pass\n",
        "loops while it is compiled": "def solve(x):\n    return "
        + "(" * 90
        + "1"
        + ")" * 90
        + " ** 9 ** 9 ** 9\n",
        "catches every signal and loops": """
import signal
for number in range(1, 64):
    try:
        signal.signal(number, lambda *_: None)
    except (OSError, ValueError):
        pass
def solve(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
""",
        "matches a pattern for ever": "import re\ndef solve(x):\n    return re.match('(a+)+$', 'a' * 60 + 'b')\n",
        "sleeps": "import time\ndef solve(x):\n    time.sleep(1000)\n",
        "waits for input that never comes": "def solve(x):\n    import os\n    return os.read(3, 1 << 20) and None\n",
        "waits for a lock": "import threading\ndef solve(x):\n    lock = threading.Lock()\n    lock.acquire()\n    lock.acquire()\n",
        "makes the tests compute for ever": "def solve(x):\n    return 7 ** (1 << 20)\n",
    },
    "flood": {
        "prints without end": "def solve(x):\n    while True:\n        print('x' * 10000)\n",
        "returns more than may cross": "def solve(x):\n    return 'x' * (64 << 20)\n",
        "takes all memory": "def solve(x):\n    held = []\n    while True:\n        held.append(bytearray(64 << 20))\n",
        "writes a file": "def solve(x):\n    with open('/tmp/left', 'w') as f:\n        f.write('x')\n    return 0\n",
        "writes to shared memory": "def solve(x):\n    with open('/dev/shm/left', 'w') as f:\n        f.write('x')\n    return 0\n",
        "removes the socket": "import os\ndef solve(x):\n    os.unlink('sock')\n    return 0\n",
        "opens files without end": "def solve(x):\n    held = []\n    while True:\n        held.append(open('/dev/null'))\n",
    },
    "spawn": {
        "forks": "import os\ndef solve(x):\n    while True:\n        os.fork()\n",
        "starts a shell": "import subprocess\ndef solve(x):\n    return subprocess.run('touch /tmp/left', shell=True)\n",
        "becomes another program": "import os, sys\ndef solve(x):\n    os.execv(sys.executable, [sys.executable, '-c', 'pass'])\n",
        "starts threads without end": """
import threading, time
def solve(x):
    while True:
        threading.Thread(target=time.sleep, args=(1000,)).start()
""",
        "opens a connection": "import socket\ndef solve(x):\n    socket.create_connection(('127.0.0.1', 80))\n",
        "clones by hand": RAW_SYSTEM_CALL
        + "def solve(x):\n    while True:\n        call(56, 17, 0, 0, 0, 0)\n",
    },
    "recurse": {
        "without end": "def solve(x):\n    return solve(x)\n",
        "without end and without a limit": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x):\n    return solve(x)\n",
        "in C": "import sys\nsys.setrecursionlimit(10**9)\ndef solve(x):\n    a = []\n    for _ in range(10**6):\n        a = [a]\n    return repr(a)\n",
        "in its own class": "class A:\n    def __getattr__(self, n):\n        return getattr(self, n)\ndef solve(x):\n    return A().b\n",
        "into a list that holds itself": "def solve(x):\n    a = []\n    a.append(a)\n    return a\n",
        "in what is compiled": "def solve(x):\n    return " + "-" * 100000 + "1\n",
    },
}
