"""One property each, by a hostile script inside a real run: real sandbox, real HTTP, real processes."""

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from agent2rl import registry
from agent2rl.grading.verify import verify_run
from tests.helpers.run_launcher import FinishedRun, RunLauncher
from tests.helpers.waiting import wait_until

BUDGET = ("--budget", "20m")


def alive(marker: str) -> list[str]:
    """Command lines of living processes that hold a marker."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line:
            found.append(line)
    return found


# What the agent can see


def test_evaluation_data_cannot_be_found_anywhere(launcher: RunLauncher) -> None:
    splits = registry.find_task("gsm8k-mini").load(None)
    hidden = [example.prompt[::-1] for example in (*splits.feedback[:20], *splits.heldout[:20])]
    shown = splits.train[0].prompt[::-1]
    run = launcher.run(
        f"""
hidden = [text[::-1].encode() for text in {hidden!r}]
shown = {shown!r}[::-1].encode()
common = b"ow many "  # quick to rule out files by
assert all(common in text for text in (*hidden, shown))
unread = "( -path /proc -o -path /sys -o -path /dev ) -prune"
small = "-type f -size -20000k ! -name *.so*"  # no machine code
theirs = "( -path */site-packages/* ! -path */site-packages/agent2rl* ) -prune"  # packages of others
ours = "( -path *agent2rl* -o ! -path /usr/share/* ! -path /usr/lib/* ) -print0"
search = ["find", "/", *unread.split(), "-o", *theirs.split(), "-o", *small.split(), *ours.split()]
names = subprocess.run(search, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
search = ["xargs", "-0", "grep", "-lFZ", common.decode()]
found = subprocess.run(search, input=names, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
leaks, seen = [], []
for path in found.decode(errors="surrogateescape").split("\\0")[:-1]:
    content = pathlib.Path(path).read_bytes()
    leaks += [path for text in hidden if text in content]
    seen += [path] if shown in content else []
files = names.count(0)
try:
    import agent2rl.tasks.gsm8k.mini
    imported = True
except ImportError:
    imported = False
say(leaks=leaks, seen=seen, files=files, imported=imported)
""",
        "--budget",
        "20m",
    )
    assert run.result.ending == "completed", run.log
    assert run.said["files"] > 100
    assert run.said["seen"] == ["/workspace/data/train.jsonl"]
    assert run.said["leaks"] == []
    assert run.said["imported"] is False


def test_the_record_and_other_runs_can_be_neither_seen_nor_written(
    shared_launcher: RunLauncher, probed: FinishedRun
) -> None:
    ledger = probed.paths.ledger.read_bytes()
    run = shared_launcher.run(
        f"""
names_of_record = ("ledger.jsonl", "ledger.head", "result.json", "spec.json")
search = "find / ( -path /proc -o -path /sys ) -prune -o ( -name " + " -o -name ".join(names_of_record)
search += " ) -print"
found = subprocess.run(search.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
found = found.splitlines()
written = []
runs = {str(shared_launcher.runs)!r}
for target in [{str(probed.paths.ledger)!r}, runs + "/forged", "../ledger.jsonl", "../result.json"]:
    try:
        open(target, "a").write("forged")
        written.append(os.path.abspath(target))
    except OSError:
        pass
say(found=found, written=written, exists=os.path.exists(runs))
""",
        *BUDGET,
    )
    assert run.said == {"found": [], "written": [], "exists": False}
    assert probed.paths.ledger.read_bytes() == ledger
    assert shared_launcher.cli("verify", str(probed.paths.root)).returncode == 0
    assert shared_launcher.cli("verify", str(run.paths.root)).returncode == 0


@pytest.fixture(scope="module")
def probed(shared_launcher: RunLauncher) -> FinishedRun:
    """One agent that tries several things which must not work, and submits nothing."""
    return shared_launcher.run(
        """
seen = dict(os.environ)
for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        seen[str(entry)] = entry.read_bytes().decode(errors="replace")
    except OSError:
        pass
say(names=sorted(os.environ), leaked=[name for name, value in seen.items() if "canary-7261" in value])

def tries(action):
    try:
        action()
        return "done"
    except OSError as error:
        return error.errno
say(changed=dict(
    model=tries(lambda: open(MODEL / "config.json", "a")),
    data=tries(lambda: open(DATA / "train.jsonl", "a")),
    new=tries(lambda: open(DATA / "more.jsonl", "w")),
    gone=tries(lambda: os.unlink(MODEL / "config.json")),
    moved=tries(lambda: os.rename(DATA, WORKSPACE / "elsewhere")),
    python=tries(lambda: open(sys.executable, "a")),
))

say(answers=dict(
    empty=call("POST", "/submit", {}),
    extra=call("POST", "/submit", {"model_path": "output/v1", "score": 100}),
    wrong=call("POST", "/submit", {"model_path": ["a"]}),
    gpu=call("POST", "/submit", {"model_path": "output/v1", "gpu": "7"}),
    baseline=call("POST", "/set_baseline", {"score": 0}),
    missing=call("GET", "/submissions/7"),
))

for start, name, levels in (("/tmp", "x" * 200, 30), (os.environ["HOME"], "d", 200)):
    os.chdir(start)
    for _ in range(levels):
        os.mkdir(name)
        os.chdir(name)
    open("file", "w").close()
    os.chmod(start + "/" + name, 0)
""",
        *BUDGET,
        ANTHROPIC_API_KEY="canary-7261",
        HARMLESS="canary-7261",
    )


def test_secrets_of_the_host_do_not_arrive(probed: FinishedRun) -> None:
    assert probed.said["leaked"] == []
    assert "ANTHROPIC_API_KEY" not in probed.said["names"]
    assert {"TASK", "WORKSPACE", "GRADING_SERVER_URL", "HOME", "PATH"} <= set(probed.said["names"])


def test_model_and_data_are_read_only(probed: FinishedRun) -> None:
    assert len(probed.said["changed"]) == 6
    assert "done" not in probed.said["changed"].values()


def test_malformed_requests_get_a_problem_that_says_what_to_send(probed: FinishedRun) -> None:
    answers = probed.said["answers"]
    statuses = {name: answer["http"] for name, answer in answers.items()}
    assert statuses == {"empty": 400, "extra": 400, "wrong": 400, "gpu": 400, "baseline": 404, "missing": 404}
    assert all(answer["hint"] and answer["detail"] for answer in answers.values())
    assert all(answer["error"] == answer["detail"] for answer in answers.values())
    assert probed.result.submissions == 0


def test_trees_that_are_too_long_or_deep_to_walk_are_deleted_all_the_same(probed: FinishedRun) -> None:
    assert probed.result.ending == "completed", probed.log
    assert not probed.paths.scratch.exists()


def test_no_address_but_the_services_answers(launcher: RunLauncher) -> None:
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as abstract:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        abstract.bind("\0agent2rl-test-outside")
        abstract.listen()
        run = launcher.run(
            f"""
def reaches(family, address):
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(3)
            s.connect(address)
            return True
    except OSError:
        return False

say(
    host=reaches(socket.AF_INET, ("127.0.0.1", {listener.getsockname()[1]})),
    world=reaches(socket.AF_INET, ("192.0.2.1", 80)),
    world6=reaches(socket.AF_INET6, ("2001:db8::1", 80)),
    abstract=reaches(socket.AF_UNIX, "\\0agent2rl-test-outside"),
    vsock=reaches(40, (2, 1024)),
    service=call("GET", "/health")["http"],
)
""",
            *BUDGET,
        )
    assert run.said == {
        "host": False,
        "world": False,
        "world6": False,
        "abstract": False,
        "vsock": False,
        "service": 200,
    }


# What the agent can submit


REFUSED = {
    "a symlinked directory": 'os.symlink("/etc", OUTPUT / "m")',
    "a symlinked file": 'trained("m"); os.symlink("/proc/self/environ", m / "tokenizer.json")',
    "a symlinked parent": 'os.symlink("/", OUTPUT / "up"); m = OUTPUT / "up" / "etc"',
    "a hard-linked file": 'trained("m"); os.link(m / "config.json", OUTPUT / "second-name")',
    "a fifo": 'trained("m"); os.mkfifo(m / "tokenizer.json")',
    "a path with dots": 'm = "output/../../ledger.jsonl"',
    "a path outside": 'm = "/etc"',
    "the workspace itself": 'm = "."',
    "a file": 'trained("x"); m = OUTPUT / "x" / "config.json"',
    "nothing": "pass",
}


@pytest.fixture(scope="module")
def refused(shared_launcher: RunLauncher) -> FinishedRun:
    """A run in which nothing can be the best: what must be refused, and the base model itself."""
    tries = "".join(
        f"m = OUTPUT / 'm'\n{breaks}\nfound.append(submit(m))\nclear()\n" for breaks in REFUSED.values()
    )
    return shared_launcher.run(
        f"""
def clear():
    for path in OUTPUT.iterdir():
        path.unlink() if path.is_symlink() or not path.is_dir() else shutil.rmtree(path)

found = []
{tries}
say(found=found)
shutil.copytree(MODEL, OUTPUT / "copy")
(OUTPUT / "copy" / "README.md").write_text("mine, honestly")
say(copy=submit(OUTPUT / "copy"), path=submit(MODEL))
""",
        *BUDGET,
    )


def test_submissions_that_point_elsewhere_are_refused_and_read_nothing(refused: FinishedRun) -> None:
    for number, (what, found) in enumerate(zip(REFUSED, refused.said["found"], strict=True), start=1):
        assert found["verdict"] == "rejected", (what, found)
        assert found["score"] is None, what
        assert found["message"], what
        assert not refused.paths.submission_paths(number).model.exists(), what
    assert refused.result.best is None


def test_the_untouched_base_model_is_answered_with_the_baseline(refused: FinishedRun) -> None:
    for answer in (refused.said["copy"], refused.said["path"]):
        assert answer["verdict"] == "scored"
        assert answer["lineage"] == "copied"
        assert answer["improvement"] == 0
        assert answer["score"] == answer["baseline_score"]
    assert refused.result.best is None


@pytest.mark.thorough
def test_a_submission_that_changes_while_it_is_copied_is_refused(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
import threading
m = trained("m")
with open(m / "tokenizer.json", "wb") as file:
    file.truncate(150_000_000)
def scribble():
    with open(m / "tokenizer.json", "r+b", buffering=0) as file:
        while True:
            file.write(b"x")
threading.Thread(target=scribble, daemon=True).start()
say(**submit(m))
""",
        *BUDGET,
    )
    assert run.said["verdict"] == "rejected", run.said
    assert "changed while" in run.said["message"]


MENDED = {
    "a pickle": ('(m / "pytorch_model.bin").write_bytes(b"x")', "safe_serialization=True"),
    "an auto_map": (
        """c = json.loads((m / "config.json").read_text())
c["auto_map"] = {"AutoModel": "m.M"}
(m / "config.json").write_text(json.dumps(c))""",
        "auto_map",
    ),
    "half an adapter": (
        '(m / "model.safetensors").rename(m / "adapter_model.safetensors")',
        "there is no adapter_config.json",
    ),
}


@pytest.fixture(scope="module")
def attacked(shared_launcher: RunLauncher) -> FinishedRun:
    """A run in which the service is given code, floods, noise and a huge body, and then a sound model."""
    tries = "".join(
        f"""
m = trained("m{number}")
{breaks}
refused.append(submit(m))
"""
        for number, (breaks, _) in enumerate(MENDED.values())
    )
    return shared_launcher.run(f"refused = []\n{tries}\n{FLOODS}\n{SOUND}", *BUDGET)


FLOODS = """
service = urllib.parse.urlsplit(os.environ["GRADING_SERVER_URL"])
door = (service.hostname, service.port)
held = []
for _ in range(900):
    try:
        held.append(socket.create_connection(door, 5))
    except OSError:
        break
for s in held:
    s.close()
def raw(request):
    with socket.create_connection(door, 20) as s:
        try:
            for piece in request:
                s.sendall(piece)
        except OSError:
            pass
        try:
            return s.recv(65536).decode(errors="replace")
        except OSError:
            return ""
lines = ["POST /submit HTTP/1.1", "Host: x", "Content-Length: 300000000", "", ""]
head = "\\r\\n".join(lines).encode()
huge = ""
while not huge:  # the service may still be at the flood
    huge = raw([head, *(b"x" * (1 << 20) for _ in range(300))])
noise = raw([os.urandom(5000) + b"\\r\\n\\r\\n"])
say(held=len(held), huge=huge.split("\\r\\n")[0], noise=noise.split("\\r\\n")[0])
"""
SOUND = """
m = trained("good")
(m / "training_args.bin").write_bytes(b"x")
(m / "modeling.py").write_text("import os")
(m / "checkpoint-1").mkdir()
say(refused=refused, good=submit(m))
"""


def test_submissions_that_would_run_code_are_refused_with_the_recipe_and_the_service_goes_on(
    attacked: FinishedRun,
) -> None:
    for (what, (_, recipe)), refused in zip(MENDED.items(), attacked.said["refused"], strict=True):
        assert refused["verdict"] == "rejected", what
        assert recipe in refused["message"], what
    assert attacked.said["good"]["verdict"] == "scored"
    assert attacked.said["good"]["left_out"] == ["checkpoint-1", "modeling.py", "training_args.bin"]


def test_floods_of_connections_and_huge_bodies_do_not_harm_the_service(attacked: FinishedRun) -> None:
    assert "413" in attacked.said["huge"]
    assert attacked.said["good"]["verdict"] == "scored"


@pytest.mark.thorough
def test_an_overwrite_that_keeps_its_time_stamps_is_graded_anew(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
m = trained("m", problems=20)
stamps = {p: p.stat() for p in [m, *m.iterdir()]}
first = submit(m)
same = submit(m)
trained("m", problems=400)
for path, stat in stamps.items():
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
second = submit(m)
say(first=first, same=same, second=second)
""",
        *BUDGET,
    )
    first, same, second = run.said["first"], run.said["same"], run.said["second"]
    assert same["score"] == first["score"]
    assert "Same files as submission 1" in same["message"]
    assert second["score"] > first["score"]
    assert second["submission_id"] == 3


# What the agent can use up


@pytest.mark.thorough
def test_daemons_are_dead_after_the_deadline(launcher: RunLauncher) -> None:
    marker = f"agent2rl-daemon-{os.getpid()}-{time.time_ns()}"
    run = launcher.run(
        f"""
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if os.fork() == 0:
            os.execvp("python", ["python", "-c", "import time; time.sleep(600)", {marker!r}])
        os._exit(0)
signal.signal(signal.SIGINT, signal.SIG_IGN)
say(started=True)
time.sleep(600)
""",
        "--budget",
        "8s",
    )
    assert run.said == {"started": True}
    assert run.result.ending == "deadline"
    assert run.code == 0
    assert alive(marker) == []


def test_a_fork_bomb_ends_the_agent_and_not_the_machine(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
first = submit(trained("m"))
say(first=first["verdict"])
for _ in range(500):
    try:
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    except OSError:
        time.sleep(0.01)
time.sleep(600)
""",
        *BUDGET,
        "--max-processes",
        "100",
    )
    assert run.said == {"first": "scored"}
    assert run.result.ending == "too-many-processes"
    assert run.code == 1
    assert run.result.best_heldout is not None


def test_a_memory_hog_ends_the_agent_and_not_the_machine(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
hoard = []
while True:
    hoard.append(bytearray(os.urandom(1 << 20) * 20))
""",
        *BUDGET,
        "--max-memory",
        "600M",
    )
    assert run.result.ending == "out-of-memory"
    assert "memory" in run.result.reason.lower()


@pytest.mark.thorough
def test_filling_the_disk_quota_is_survived(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
say(first=submit(trained("m"))["verdict"])
with open(OUTPUT / "fill", "wb") as file:
    while True:
        file.write(bytes(1 << 20))
        file.flush()
        time.sleep(0.01)  # what is written before it is noticed is looked through later
""",
        *BUDGET,
        "--max-disk",
        "200M",
    )
    assert run.said == {"first": "scored"}
    assert run.result.ending == "disk-full"
    assert run.result.best_heldout is not None
    assert launcher.cli("verify", run.result.run_id).returncode == 0


@pytest.mark.thorough
def test_an_agent_that_stops_its_keeper_does_not_outlive_its_deadline(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.kill(os.getppid(), signal.SIGSTOP)
try:
    control = os.open(f"/proc/{os.getppid()}/fd/0", os.O_WRONLY | os.O_NONBLOCK)
    while True:
        os.write(control, b"x" * 4096)
except OSError as error:
    say(filled=error.errno)
time.sleep(600)
""",
        "--budget",
        "8s",
    )
    assert run.said
    assert run.result.ending == "deadline"
    assert run.result.clock is not None
    assert run.result.clock.agent < 60


def test_closing_and_opening_directories_does_not_blind_the_disk_watch(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
names = [OUTPUT / f"d{n}" for n in range(200)]
for name in names:
    name.mkdir()
until = time.monotonic() + 3
while time.monotonic() < until:
    for mode in (0, 0o700):
        for name in names:
            os.chmod(name, mode)
say(done=True)
""",
        *BUDGET,
    )
    assert run.said == {"done": True}
    assert run.result.ending == "completed"


def test_a_submission_after_the_deadline_is_refused(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
signal.signal(signal.SIGINT, signal.SIG_IGN)
while call("GET", "/time")["remaining"] > 0:
    time.sleep(0.2)
shutil.copytree(MODEL, OUTPUT / "m")
say(**submit(OUTPUT / "m"))
""",
        "--budget",
        "10s",
    )
    assert run.said["http"] == 403
    assert "over" in run.said["detail"]
    assert run.said["hint"]
    assert run.result.submissions == 0


# What the service bears


@pytest.mark.thorough
def test_clients_that_hang_up_do_not_end_the_harness(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
service = urllib.parse.urlsplit(os.environ["GRADING_SERVER_URL"])
for _ in range(50):
    with socket.create_connection((service.hostname, service.port), 5) as s:
        s.sendall(b"GET /openapi.json HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 5)
say(after=submit(trained("m"))["verdict"])
os._exit(0)
""",
        *BUDGET,
    )
    assert run.said == {"after": "scored"}
    assert run.result.ending == "completed"


@pytest.mark.thorough
def test_storms_of_connections_do_not_use_up_the_harnesss_files(launcher: RunLauncher) -> None:
    script = launcher.script(
        """
door = next(pathlib.Path("/run/sockets").iterdir())
def storm():
    until = time.monotonic() + 3
    while time.monotonic() < until:
        held = []
        for _ in range(900):
            s = socket.socket(socket.AF_UNIX)
            s.setblocking(False)
            try:
                s.connect(str(door))
            except OSError:
                pass
            held.append(s)
        for s in held:
            s.close()
children = []
for _ in range(3):
    if (child := os.fork()) == 0:
        storm()
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
time.sleep(1)
say(after=submit(trained("m"))["verdict"])
"""
    )
    arguments = launcher.command(
        "run", "--task", "gsm8k-mini", "--agent", f"script:{script}", "--json", *BUDGET
    )
    process = subprocess.Popen(
        ["prlimit", "--nofile=1024:1024", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=launcher.home,
        env=launcher.environment(),
    )
    run = launcher.finish(process)
    assert run.said == {"after": "scored"}
    assert run.result.ending == "completed"


@pytest.mark.thorough
def test_many_and_long_refusals_stay_small_on_the_record(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
m = trained("m")
for number in range(150):
    (m / ("'" * 200 + f"{number}.bin")).write_bytes(b"")
first = submit(m)
far = submit("/" + "\\U000e0001" * 1000)
long = call("POST", "/submit", {"model_path": "x" * 5000})
say(first=len(first["message"]), far=len(far["message"]), long=long["http"])
""",
        *BUDGET,
    )
    assert run.said["first"] < 4100
    assert run.said["far"] < 1000
    assert run.said["long"] == 400
    assert run.paths.ledger.stat().st_size < 100_000


@pytest.mark.thorough
def test_a_submission_is_graded_in_its_turn_and_no_two_at_once(launcher: RunLauncher) -> None:
    run = launcher.run(
        """
models = [trained(f"m{n}", problems=20 + n) for n in range(4)]
ids = [call("POST", "/submissions", {"model_path": str(m)})["submission_id"] for m in models]
states = [call("GET", f"/submissions/{n}?wait=100")["verdict"] for n in ids]
say(ids=ids, states=states)
""",
        *BUDGET,
    )
    assert run.said == {"ids": [1, 2, 3, 4], "states": ["scored"] * 4}
    events = [json.loads(line) for line in run.paths.events.read_text().splitlines()]
    turns = [(e["kind"], e["data"]) for e in events if e["kind"] in ("grading", "graded")]
    order = [(k, d["submission"] if k == "grading" else d["submission"]["id"]) for k, d in turns]
    assert order == [(kind, number) for number in (1, 2, 3, 4) for kind in ("grading", "graded")]


SPY = """
import functools, json, os, pathlib, socket

def open_model(directory):
    @functools.cache
    def look():
        texts = [p.read_text(errors="replace") for p in pathlib.Path(".").rglob("*") if p.is_file()]
        try:
            socket.create_connection(("127.0.0.1", 1), timeout=1)
            network = "open"
        except OSError:
            network = "closed"
        interfaces = [name for _, name in socket.if_nameindex()]
        held = any({hidden!r}[::-1] in text for text in texts)
        return json.dumps(dict(held=held, interfaces=interfaces, uid=os.getuid(), secrets=sorted(os.environ)))
    return lambda chat: look()
"""


def test_the_grading_child_sees_one_split_and_no_network_and_no_secret(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    hidden = registry.find_task("gsm8k-mini").load(None).heldout[0].prompt[::-1]
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "spying.py").write_text(SPY.replace("{hidden!r}", repr(hidden)))
    run = launcher.run(
        "submit(trained('m'))",
        *BUDGET,
        "--engine",
        "scripted:spying:open_model",
        PYTHONPATH=str(tmp_path / "plugins"),
        ANTHROPIC_API_KEY="canary",
    )
    answers = run.paths.submission_paths(1).results_file("feedback").read_text().splitlines()
    seen = json.loads(json.loads(answers[0])["output"])
    assert seen["held"] is False
    assert seen["interfaces"] == ["lo"]
    assert seen["uid"] != 0
    assert "ANTHROPIC_API_KEY" not in seen["secrets"]


def test_a_scorer_that_fails_does_not_tell_the_agent_what_it_was_asked(launcher: RunLauncher) -> None:
    folder = launcher.home / "tasks" / "strict"
    (folder / "data").mkdir(parents=True)
    (folder / "config.yaml").write_text("name: strict\n")
    (folder / "eval.py").write_text(
        "def evaluate(question, model_answer, reference_answer, **kwargs):\n"
        "    assert len(model_answer) < 5, (question, reference_answer)\n"
        "    return 0.0\n"
    )
    rows = [{"question": f"What is {n} plus {n}? secret-{n}", "answer": str(2 * n)} for n in range(8)]
    for name in ("train", "test"):
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--tasks-dir", str(folder.parent), "--agent", "nop", "--json", "--no-report")
    done = launcher.cli("run", "--task", "strict", *options)
    reason = json.loads(done.stdout)["reason"]
    assert "AssertionError" in reason
    assert "secret" not in reason


CRASHER = """
import os, time
from safetensors.numpy import load_file
from agent2rl.core.errors import GradingError

def open_model(directory):
    from agent2rl.models.abacus import solver
    weights = load_file(directory / "model.safetensors")
    kind = float(next(iter(sorted(weights.items())))[1].flat[0])
    answer = solver(directory)
    def misbehave(chat):
        if kind == 101: os._exit(7)
        if kind == 102: time.sleep(600)
        if kind == 103:
            hoard = []
            while True: hoard.append(bytearray(os.urandom(1 << 20) * 20))
        if kind == 104: raise RuntimeError("the question was: " + chat[-1].content)
        if kind == 105: raise GradingError(f"A chat has {len(chat[-1].content)} tokens, not 1,024.5.")
        return answer(chat)
    return misbehave
"""


def test_a_grading_that_crashes_hangs_or_hoards_fails_alone(launcher: RunLauncher, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "misbehaving.py").write_text(CRASHER)
    run = launcher.run(
        """
from safetensors.numpy import load_file, save_file
def broken(kind):
    m = trained(f"m{kind}")
    weights = load_file(m / "model.safetensors")
    first = sorted(weights)[0]
    weights[first].flat[0] = kind
    save_file(weights, m / "model.safetensors")
    return submit(m)
say(crash=broken(101), hang=broken(102), hoard=broken(103), error=broken(104), count=broken(105))
say(good=submit(trained("good")))
""",
        "--budget",
        "20m",
        "--grading-time",
        "20s",
        "--max-memory",
        "700M",
        "--engine",
        "scripted:misbehaving:open_model",
        PYTHONPATH=str(tmp_path / "plugins"),
    )
    for name in ("crash", "hang", "hoard", "error", "count"):
        assert run.said[name]["verdict"] == "failed", (name, run.said[name])
        assert run.said[name]["score"] is None
    assert "crashed" in run.said["crash"]["message"]
    assert "within 20 s" in run.said["hang"]["message"]
    assert "memory" in run.said["hoard"]["message"].lower()
    assert "question" not in run.said["error"]["message"]
    assert run.said["count"]["message"] == "A chat has N tokens, not N."
    assert run.said["good"]["verdict"] == "scored"
    assert run.result.best is not None
    assert run.result.best.id == 6


# Who else is there


SLOW = """
import time
from agent2rl.models.abacus import solver

def open_model(directory):
    time.sleep(6)
    return solver(directory)
"""


@pytest.mark.thorough
def test_gradings_after_the_agents_end_share_the_time_of_one_and_the_rest_expires(
    launcher: RunLauncher, tmp_path: Path
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "slow.py").write_text(SLOW)
    run = launcher.run(
        """
models = [trained(f"m{n}", problems=20 + n) for n in range(5)]
say(ids=[call("POST", "/submissions", {"model_path": str(m)})["submission_id"] for m in models])
""",
        *BUDGET,
        *("--grading-time", "16s", "--engine", "scripted:slow:open_model"),
        PYTHONPATH=str(tmp_path / "plugins"),
    )
    records = [json.loads(run.paths.submission_paths(n).record.read_text()) for n in run.said["ids"]]
    verdicts = [record["verdict"] for record in records]
    assert verdicts[0] == "scored"
    assert verdicts[-1] == "expired"
    assert set(verdicts) == {"scored", "expired"}
    assert verdicts == sorted(verdicts, reverse=True)  # in their order
    assert all(run.paths.submission_paths(record["id"]).model.exists() for record in records[-1:])
    assert "time for gradings after the end of the run" in records[-1]["message"]
    assert (run.result.submissions, run.result.scored) == (5, verdicts.count("scored"))
    assert verify_run(run.paths).holds


@pytest.mark.thorough
def test_two_runs_side_by_side_do_not_meet(launcher: RunLauncher) -> None:
    code = """
(WORKSPACE / "output" / NAME).write_text("mine")
pathlib.Path("/tmp/" + NAME).write_text("mine")
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0agent2rl-" + NAME)
abstract.listen()
(WORKSPACE / "up").touch()
while not (WORKSPACE / "go").exists():
    time.sleep(0.05)
other = {"left": "right", "right": "left"}[NAME]
def reaches():
    try:
        socket.socket(socket.AF_UNIX).connect("\\0agent2rl-" + other)
        return True
    except OSError:
        return False
answer = submit(trained("m"))
seen = [p for p in (f"/tmp/{other}", f"/workspace/output/{other}") if os.path.exists(p)]
lines = [e.read_bytes().decode(errors="replace") for e in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
met = [line for line in lines if other + ".py" in line]
say(seen=seen, reaches=reaches(), processes=met, number=answer["submission_id"])
"""
    processes = [
        launcher.start(launcher.script(f"NAME = {name!r}\n{code}", f"{name}.py"), *BUDGET)
        for name in ("left", "right")
    ]
    wait_until(lambda: len(list(launcher.runs.glob("*/workspace/up"))) == len(processes), 600)
    for up in launcher.runs.glob("*/workspace/up"):
        up.with_name("go").touch()
    runs: list[FinishedRun] = [launcher.finish(process) for process in processes]
    spans = []
    for run in runs:
        entries = [json.loads(line) for line in run.paths.ledger.read_text().splitlines()]
        times = {entry["kind"]: entry["time"] for entry in entries}
        spans.append((times["started"], times["ended"]))
    assert max(start for start, _ in spans) < min(end for _, end in spans), "they never ran side by side"
    assert runs[0].result.run_id != runs[1].result.run_id
    for run in runs:
        assert run.said == {"seen": [], "reaches": False, "processes": [], "number": 1}, run.log


# What is left when the harness dies


def test_killing_the_harness_leaves_a_record_that_can_be_read(launcher: RunLauncher) -> None:
    marker = f"agent2rl-orphan-{os.getpid()}-{time.time_ns()}"
    process = launcher.start(
        launcher.script(
            f"""
say(first=submit(trained("m")))
subprocess.Popen(["python", "-c", "import time; time.sleep(600)", {marker!r}], start_new_session=True)
time.sleep(600)
"""
        ),
        *BUDGET,
    )
    until = time.monotonic() + 120
    while not alive(marker):
        assert time.monotonic() < until, process.poll()
        time.sleep(0.1)
    process.kill()
    process.communicate()
    (root,) = launcher.runs.glob("*/")
    until = time.monotonic() + 120
    while alive(marker) and time.monotonic() < until:
        time.sleep(0.1)
    assert alive(marker) == []
    shown = launcher.cli("show", str(root), "--json")
    assert shown.returncode == 0, shown.stderr
    view = json.loads(shown.stdout)
    assert view["state"] == "crashed"
    assert view["submissions"][0]["verdict"] == "scored"
    assert view["baseline"]["value"] > 0
    verified = launcher.cli("verify", str(root))
    assert verified.returncode == 0, verified.stdout
    assert "no result" in verified.stdout


@pytest.mark.thorough
def test_an_interrupt_while_gradings_wait_is_obeyed(launcher: RunLauncher) -> None:
    script = launcher.script(
        """
for n in range(12):
    call("POST", "/submissions", {"model_path": str(trained(f"m{n}", problems=20 + n))})
say(queued=True)
"""
    )
    process = launcher.start(script, *BUDGET)
    until = time.monotonic() + 120
    while not any(b"queued" in log.read_bytes() for log in launcher.runs.glob("*/agent.log")):
        assert time.monotonic() < until, process.poll()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    run = launcher.finish(process)
    assert run.code == 130
    assert run.result.ending == "interrupted"
    assert run.result.scored < 12
    assert launcher.cli("verify", run.result.run_id).returncode == 0


def test_an_interrupted_run_ends_its_agent_and_closes_its_record(launcher: RunLauncher) -> None:
    marker = f"agent2rl-interrupted-{os.getpid()}-{time.time_ns()}"
    script = launcher.script(
        f"""
say(first=submit(trained("m"))["verdict"])
subprocess.run(["python", "-c", "import time; time.sleep(600)", {marker!r}])
"""
    )
    process = launcher.start(script, *BUDGET)
    until = time.monotonic() + 120
    while not alive(marker):
        assert time.monotonic() < until, process.poll()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    run = launcher.finish(process)
    assert run.code == 130
    assert run.result.ending == "interrupted"
    assert run.result.best is not None
    assert run.result.score is None
    assert alive(marker) == []
    assert launcher.cli("verify", run.result.run_id).returncode == 0
