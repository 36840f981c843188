"""Which recorded programs a reproduction runs again, and in which order."""

from dataclasses import dataclass, field

from agent2rl.analysis.recorded_steps import FoundSteps, RecordedWorkspace, find_steps
from agent2rl.core.base_record import Record
from agent2rl.core.events import FileSeen, ProcessEnd, ProcessStart, TimelineEvent

ACCEPTED_AT = 1000.0
FILES = {"code/train.py": "import torch", "code/prepare.py": "", "code/serve.py": "", "agent/start.sh": ""}
SHELL, CODE = 10, "/workspace/code"


@dataclass
class Recording:
    """Builds a timeline: a shell that starts programs, as an LLM's tool does."""

    events: list[TimelineEvent] = field(default_factory=list)
    pid: int = SHELL

    def __post_init__(self) -> None:
        self.add("bash -c '. ~/session'", 0, 1000, parent=1)

    def add(
        self, command: str, began: float, ended: float, parent: int = SHELL, directory: str = CODE
    ) -> int:
        start = ProcessStart(
            pid=self.pid,
            began=began,
            parent=parent,
            name="x",
            command=command,
            exact=True,
            directory=directory,
        )
        self.note("began", start)
        end = ProcessEnd(pid=self.pid, began=began, seconds=ended - began, cpu_seconds=1, peak_bytes=1)
        self.note("left", end)
        self.pid += 1
        return self.pid - 1

    def save(self, path: str, at: float) -> None:
        self.note("file", FileSeen(path=path, what="weights", bytes=1, changed=at))

    def note(self, kind: str, record: Record) -> None:
        self.events.append(TimelineEvent(time=1.0, kind=kind, data=record.model_dump()))

    def find(self, submitted: str = "output/final", driven: bool = True) -> FoundSteps:
        workspace = RecordedWorkspace("/workspace", FILES, {"eval.py"}, driven, submitted, ACCEPTED_AT)
        return find_steps(self.events, workspace)


def list_commands(found: FoundSteps) -> list[str]:
    return [" ".join(step.argv) for step in found.steps]


def test_what_a_shell_started_is_found_in_order_and_its_children_are_not_steps() -> None:
    recording = Recording()
    recording.add("python prepare.py --rows 10", 10, 20)
    trainer = recording.add("python /workspace/code/train.py", 30, 300)
    recording.add("python /workspace/code/train.py", 31, 300, parent=trainer)
    recording.save("output/final", 299)
    found = recording.find()
    assert list_commands(found) == ["python prepare.py --rows 10", "python {{WORKSPACE}}/code/train.py"]
    assert [step.directory for step in found.steps] == ["code", "code"]
    assert [step.seconds for step in found.steps] == [10, 270]


def test_agents_evaluations_and_installed_programs_are_not_steps() -> None:
    recording = Recording()
    for command in (
        "python -c 'the agent itself'",
        "bash /workspace/agent/start.sh",
        "node /usr/lib/node_modules/claude",
    ):
        recording.add(command, 5, 1000, parent=1)
    for command in (
        "python /workspace/eval.py output/final",
        "nvidia-smi",
        "/usr/bin/python3 /usr/bin/pip list",
    ):
        recording.add(command, 20, 30)
    recording.add("python train.py", 40, 300)
    assert list_commands(recording.find()) == ["python train.py"]


def test_launchers_modules_and_copies_of_files_are_steps() -> None:
    recording = Recording()
    commands = (
        "torchrun --nproc-per-node 2 train.py",
        "/opt/venv/bin/python /usr/bin/accelerate launch train.py",
        "python -m train --lr 1e-4",
        "python -m agent2rl.agents.recipe.train sft",
        "cp -r ../output/checkpoint ../output/final",
    )
    for at, command in enumerate(commands):
        recording.add(command, 10 + 10 * at, 15 + 10 * at)
    assert list_commands(recording.find()) == list(commands)


def test_an_installed_program_is_a_step_if_it_wrote_the_model_or_served_one() -> None:
    recording = Recording()
    recording.add("python /opt/venv/bin/vllm serve ../models/base", 5, 5000)
    recording.add("python /opt/venv/bin/huggingface-cli download x", 10, 20)
    recording.add("python /opt/venv/bin/trl sft --output ../output/final", 40, 300)
    recording.save("output/final", 299)
    assert [step.argv[2] for step in recording.find().steps] == ["serve", "sft"]


def test_an_agents_own_programs_above_a_step_are_no_servers() -> None:
    recording = Recording()
    runtime = recording.add("python -m openhands.runtime", 5, 5000, parent=SHELL)
    recording.add("python train.py", 40, 300, parent=runtime)
    recording.save("output/final", 299)
    assert list_commands(recording.find()) == ["python train.py"]


def test_trainings_of_other_models_are_left_out_unless_a_later_step_names_them() -> None:
    recording = Recording()
    for at, name in ((10, "first"), (110, "second"), (210, "warmup")):
        recording.add(f"python train.py --out ../output/{name}", at, at + 90)
        recording.save(f"output/{name}", at + 89)
    recording.add("python train.py --from ../output/warmup --out ../output/final", 310, 400)
    recording.save("output/final", 399)
    found = recording.find()
    assert [step.argv[-1] for step in found.steps] == ["../output/warmup", "../output/final"]
    assert [text.partition(": ")[0][-8:] for text in found.left_out] == ["ut/first", "t/second"]


def test_of_equal_steps_the_last_counts() -> None:
    recording = Recording()
    for at in (10, 60):
        recording.add("python train.py", at, at + 40)
    recording.add("python prepare.py", 55, 58)
    assert list_commands(recording.find()) == ["python prepare.py", "python train.py"]


def test_a_deleted_script_is_named() -> None:
    recording = Recording()
    recording.add("python prepare.py", 10, 20)
    recording.add("python gone.py", 30, 300)
    recording.save("output/final", 299)
    assert recording.find().problem == (
        "code/gone.py is not in the code that was recorded with the submission: python gone.py"
    )


def test_code_that_was_never_saved_is_named() -> None:
    for command in ("python", "python -", "python -i train.py"):
        recording = Recording()
        recording.add(command, 30, 300)
        recording.save("output/final", 299)
        assert "was typed or piped into Python" in recording.find().problem
    recording = Recording()
    recording.add("python /tmp/train.py", 30, 300)
    assert "is outside the workspace" in recording.find().problem
    assert Recording().find().problem == "no recorded program ran a file of the recorded code"


def test_a_server_in_the_background_runs_beside_the_next_step_and_is_not_waited_for() -> None:
    recording = Recording()
    recording.add("python serve.py", 10, 5000)
    recording.add("python train.py", 40, 300)
    recording.save("output/final", 299)
    server, trainer = recording.find().steps
    assert (server.background, server.gap_seconds, server.finished) == (True, 30, False)
    assert (trainer.background, trainer.finished) == (False, True)


def test_programs_after_the_submission_do_not_count() -> None:
    recording = Recording()
    recording.add("python train.py", 10, 300)
    recording.add("python prepare.py", 1001, 1100)
    assert list_commands(recording.find()) == ["python train.py"]


def test_an_agent_that_is_a_program_is_itself_the_step() -> None:
    recording = Recording()
    recording.events.clear()
    agent = recording.add("bash /workspace/agent/start.sh", 5, 1000, parent=1)
    recording.add("python train.py", 10, 300, parent=agent)
    assert list_commands(recording.find(driven=False)) == ["bash {{WORKSPACE}}/agent/start.sh"]
