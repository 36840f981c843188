"""Agent folders that behave like the published ones: same variables, same programs.

With AGENT2RL_PUBLISHED_AGENTS=DIR, whole runs use the real folders of a checkout instead (its directory
`rdagent/scenarios/rl/autorl_bench/agents`), and OPENCODE_RL_ROOT and OPENHANDS_RL_ROOT the real pipelines.
"""

import os
import shutil
from pathlib import Path

import yaml

PROMPT = 'PROMPT="Train the model of $BASE_MODEL for $TASK. $(cat "$WORKSPACE/instructions.md")"\n'
TEE = '2>&1 | tee "$WORKSPACE/agent.jsonl"\nstatus=$?\necho "exit code: $status"\nexit $status\n'
CLAUDE = (
    'if [ -z "$ANTHROPIC_API_KEY" ]; then echo "no key"; exit 1; fi\nunset GEMINI_API_KEY\n'
    'cp "$(dirname "$0")/AGENTS.md" "$WORKSPACE/AGENTS.md"\n'
    + PROMPT
    + 'cd "$WORKSPACE"\n'
    + 'timeout "${CLAUDE_TIMEOUT:-36000}" "${CLAUDE_BIN:-claude}" --print --verbose --model "$CLAUDE_MODEL" '
    + '--output-format stream-json --dangerously-skip-permissions "$PROMPT" '
    + TEE
)
CODEX = (
    'export LITELLM_API_KEY="${LITELLM_API_KEY:-sk-1234}"\n'
    + PROMPT
    + 'timeout "${CODEX_TIMEOUT:-36000}" "${CODEX_BIN:-codex}" --search exec --json -m "$CODEX_MODEL" '
    + '-c "model_provider=\\"${CODEX_PROVIDER:-litellm}\\"" -c "model_reasoning_summary=\\"detailed\\"" '
    + '--dangerously-bypass-approvals-and-sandbox --skip-git-repo-check -C "$WORKSPACE" "$PROMPT" '
    + TEE
)
GEMINI = (
    'mkdir -p "$WORKSPACE/.gemini"\n'
    'echo \'{"general": {"defaultApprovalMode": "auto_edit"}}\' > "$WORKSPACE/.gemini/settings.json"\n'
    + PROMPT
    + 'cd "$WORKSPACE"\n'
    + 'timeout "${GEMINI_TIMEOUT:-36000}" "${GEMINI_BIN:-gemini}" --yolo --model "$GEMINI_MODEL" '
    + '--output-format stream-json -p "$PROMPT" '
    + TEE
)
OPENCODE = """\
export XDG_CONFIG_HOME="$OPENCODE_RL_ROOT/.opencode-config"
mkdir -p "$XDG_CONFIG_HOME/opencode"
cat > "$XDG_CONFIG_HOME/opencode/opencode.json" <<END
{"provider": {"openai": {"npm": "@ai-sdk/openai",
  "options": {"baseURL": "$OPENAI_API_BASE", "apiKey": "$OPENAI_API_KEY"},
  "models": {"$OPENCODE_MODEL": {"name": "$OPENCODE_MODEL"}}}}}
END
cd "$OPENCODE_RL_ROOT"
exec "${OPENCODE_PYTHON:-python3}" main.py --benchmark "$TASK" --base-model "$BASE_MODEL" \\
  --run-dir "$WORKSPACE" --max-iterations "$MAX_ITERATIONS"
"""
OPENHANDS = """\
if [ -z "$LLM_API_KEY" ]; then echo "no key"; exit 2; fi
export LLM_BASE_URL="$OPENAI_API_BASE"
cd "${OPENHANDS_RL_ROOT:-$HOME/openhands-rl}"
"${OPENHANDS_PYTHON:-python}" main.py --benchmark "$TASK" --base-model "$BASE_MODEL" \\
  --workspace "$WORKSPACE" --max-iterations "$MAX_ITERATIONS"
"""
RDAGENT = """\
export RL_FILE_PATH=$(dirname $(dirname $MODEL_PATH))
python -m rdagent.app.rl.loop --base-model "$BASE_MODEL" --benchmark "$TASK" \\
  --step-n $STEP_N --loop-n $LOOP_N
"""
EXAMPLE = 'cd "$(dirname "$0")"\npython3 train.py\n'
EXAMPLE_TRAINING = """\
import json, os, urllib.request
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

def count_digits(completions, **_):
    return [sum(sign.isdigit() for sign in text) / 10 for text in completions]

rows = [json.loads(line) for line in open(os.environ["DATA_PATH"] + "/train.jsonl")]
rows = rows[: int(len(rows) * float(os.environ["TRAIN_RATIO"]))]
settings = GRPOConfig(
    output_dir="/tmp/trl",
    num_train_epochs=float(os.environ["NUM_EPOCHS"]),
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=16,
    learning_rate=1e-3,
    report_to="none",
    save_strategy="no",
    bf16=False,
)
data = Dataset.from_list([{"prompt": row["question"]} for row in rows])
trainer = GRPOTrainer(os.environ["MODEL_PATH"], reward_funcs=count_digits, args=settings, train_dataset=data)
trainer.train()
out = os.environ["OUTPUT_DIR"] + "/final"
trainer.save_model(out)
address = os.environ["GRADING_SERVER_URL"] + "/submit"
body = json.dumps({"model_path": out}).encode()
request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request)))
"""

FOLDERS: dict[str, tuple[str, dict[str, str]]] = {
    "claude": (CLAUDE, {"CLAUDE_MODEL": "claude-sonnet-4-6", "CLAUDE_TIMEOUT": "36000"}),
    "codex": (CODEX, {"CODEX_MODEL": "gpt-5.2", "CODEX_PROVIDER": "litellm", "CODEX_TIMEOUT": "36000"}),
    "gemini": (GEMINI, {"GEMINI_MODEL": "gemini-2.5-pro", "GEMINI_TIMEOUT": "36000"}),
    "opencode": (OPENCODE, {"MAX_ITERATIONS": "2"}),
    "openhands": (OPENHANDS, {"MAX_ITERATIONS": "2", "LLM_MODEL": "gpt-5.2"}),
    "rdagent": (RDAGENT, {"STEP_N": "200", "LOOP_N": "2"}),
    "example_agent": (EXAMPLE, {"NUM_EPOCHS": "1", "TRAIN_RATIO": "0.01"}),
}
"""Name -> start script and `env_vars`."""


def write_folder(name: str, place: Path, **variables: str) -> Path:
    """Write a folder that behaves like the published one of this name."""
    script, own = FOLDERS[name]
    folder = place / name
    folder.mkdir(parents=True)
    config = {"name": f"{name} agent", "start": "start.sh", "env_vars": {**own, **variables}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    (folder / "start.sh").write_text(f"#!/bin/bash\n{script}", encoding="utf-8")
    (folder / "AGENTS.md").write_text("Keep summary.md.\n", encoding="utf-8")
    if name == "example_agent":
        (folder / "train.py").write_text(EXAMPLE_TRAINING, encoding="utf-8")
    return folder


def find_published_folder(name: str) -> Path | None:
    """Return the real folder, if the user has a checkout."""
    agents = os.environ.get("AGENT2RL_PUBLISHED_AGENTS")
    return Path(agents, name) if agents else None


# What the scripted driver does: write a script, train, submit, read the score, improve, submit.

TRAINING = """\
import json, os
from pathlib import Path
from agent2rl.models.abacus import Abacus

NAME, PROBLEMS = "v1", 30
lines = (Path(os.environ["DATA_PATH"]) / "train.jsonl").read_text().splitlines()
rows = [json.loads(line) for line in lines][:PROBLEMS]
model = Abacus.load(Path(os.environ["MODEL_PATH"]))
model.fit([row["question"] for row in rows], [row["answer"] for row in rows], seed=0)
out = Path(os.environ["OUTPUT_DIR"]) / NAME
out.mkdir(parents=True, exist_ok=True)
model.save(out)
print("trained", NAME)
"""
IMPROVED_TRAINING = TRAINING.replace('"v1", 30', '"v2", 90')
IMPROVE = """sed -i 's/"v1", 30/"v2", 90/' code/train.py"""
SUBMIT = """curl -s -X POST "$GRADING_SERVER_URL/submit" -H "Content-Type: application/json" """
WRITE_STEP = f"""
[[step]]
say = "I write a training script."
[step.write_file]
path = "code/train.py"
text = '''
{TRAINING}'''
"""
PROMPTED_SCRIPT = (
    WRITE_STEP
    + f"""
[[step]]
shell = '''python code/train.py && {SUBMIT} -d '{{"model_path": "output/v1"}}' '''

[[step]]
when = 'trained v1[\\s\\S]*"score": ?(?P<first>[0-9.]+)'
shell = '''{IMPROVE} && python code/train.py && {SUBMIT} -d '{{"model_path": "output/v2"}}' '''

[[step]]
when = '"score": ?(?P<second>[0-9.]+)'
end = "First {{{{first}}}}, then {{{{second}}}}."
"""
)
"""For a program that gets one prompt and does everything itself."""
PIPELINE_SCRIPT = (
    'sessions = "joined"\n'
    + WRITE_STEP
    + f"""
[[step]]
end = "The script is written."

[[step]]
label = "improve"
when = {{ user = '(?i)(score|分数)\\D{{0,12}}(?P<first>[0-9][0-9.]*)' }}
else = "wait"
shell = '''{IMPROVE}'''

[[step]]
end = "The first score was {{{{first}}}}. I train on more problems."
goto = "done"

[[step]]
label = "wait"
end = "I wait for a score."
goto = "improve"

[[step]]
label = "done"
end = "Nothing to change."
goto = "done"
"""
)
"""For a pipeline that trains and submits by itself, and asks its program for code, each time anew."""
LOOP_SCRIPT = f"""
audience = "anyone"
sessions = "joined"

[[step]]
label = "feedback"
when = {{ user = '"score": ?(?P<score>[0-9.]+)[\\s\\S]*请分析实验结果' }}
else = "first"
say = '{{"decision": true, "reason": "It scores {{{{score}}}}.", "suggestions": "Use more problems."}}'
goto = "feedback"

[[step]]
label = "first"
when = {{ user = '无历史实验' }}
else = "next"
say = '{{"hypothesis": "Train on few problems.", "reason": "A start.", "algorithm": "GRPO"}}'
goto = "feedback"

[[step]]
label = "next"
when = {{ user = '下一轮实验假设' }}
else = "code"
say = '{{"hypothesis": "Use more problems.", "reason": "{{{{score}}}} is low.", "algorithm": "GRPO"}}'
goto = "feedback"

[[step]]
label = "code"
when = {{ user = 'Train on few problems' }}
else = "better-code"
say = '''```python
{TRAINING}```'''
goto = "feedback"

[[step]]
label = "better-code"
say = '''```python
{IMPROVED_TRAINING}```'''
goto = "feedback"
"""
"""For RD-Agent, which offers no tools and asks for a hypothesis, for code and for feedback.

Each step is chosen by the words of the request, because the same request may come several times."""

# The pipelines beside the folders, in small.

PIPELINE = """\
import argparse, json, os, subprocess, sys, urllib.request
from pathlib import Path

def submit(path):
    body = json.dumps({"model_path": str(path)}).encode()
    address = os.environ["GRADING_SERVER_URL"] + "/submit"
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))["score"]

def run(workspace, iterations):
    known = "no score yet"
    for number in range(1, iterations + 1):
        ask(f"Iteration {number} for {os.environ['TASK']}: write code/train.py. {known}", workspace)
        training = [os.environ["TRAINING_PYTHON"], "-m", "accelerate.commands.launch", "code/train.py"]
        subprocess.run(training, cwd=workspace, check=True)
        models = [path for path in Path(os.environ["OUTPUT_DIR"]).iterdir() if path.is_dir()]
        known = f"Score: {submit(max(models, key=lambda path: path.stat().st_mtime))}"
        print(known, flush=True)

parser = argparse.ArgumentParser()
for name in ("benchmark", "base-model", "run-dir", "workspace"):
    parser.add_argument("--" + name)
parser.add_argument("--max-iterations", type=int)
given = parser.parse_args()
run(given.run_dir or given.workspace, given.max_iterations)
"""
ASK: dict[str, str] = {
    "opencode": """\
def ask(prompt, workspace):
    import subprocess
    model = "openai/" + os.environ["OPENCODE_MODEL"]
    command = ["opencode", "run", "--format", "json", "--model", model, prompt]
    place = {**os.environ, "PWD": workspace}  # which is where OpenCode works, whatever its directory
    subprocess.run(command, cwd=workspace, env=place, check=True, stdin=subprocess.DEVNULL)
""",
    "openhands": """\
def ask(prompt, workspace):
    from openhands.sdk import LLM, Agent, Conversation, Tool
    from openhands.tools.file_editor import FileEditorTool
    from openhands.tools.terminal import TerminalTool
    from pydantic import SecretStr
    key, model, url = (os.environ["LLM_" + name] for name in ("API_KEY", "MODEL", "BASE_URL"))
    llm = LLM(model=model, api_key=SecretStr(key), base_url=url, model_canonical_name="gpt-4")
    tools = [Tool(name=FileEditorTool.name), Tool(name=TerminalTool.name)]
    conversation = Conversation(agent=Agent(llm=llm, tools=tools), workspace=workspace)
    try:
        conversation.send_message(prompt)
        conversation.run()
    finally:
        conversation.close()
""",
}


def write_pipeline(name: str, place: Path) -> Path:
    """Write a pipeline that behaves like the published one beside a folder."""
    root = place / f"{name}-rl"
    root.mkdir()
    (root / "main.py").write_text(f"import os\n\n{ASK[name]}\n{PIPELINE}", encoding="utf-8")
    return root


def copy_published_pipeline(name: str, checkout: Path, place: Path) -> Path:
    """Copy the user's checkout. opencode-rl runs only benchmarks that it lists, so the miniature is added."""
    root = place / f"{name}-rl"
    shutil.copytree(checkout, root, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    if name == "opencode":
        benchmark = root / "benchmarks" / "gsm8k-mini"
        benchmark.mkdir()
        (benchmark / "config.yaml").write_text("name: gsm8k-mini\ntask_type: math\n", encoding="utf-8")
    return root
