"""Agent folders that behave like the published ones: they read the same variables and start the same programs.

With AGENT2RL_PUBLISHED_AGENTS=DIR, whole runs use the real folders of a checkout instead (its directory
`rdagent/scenarios/rl/autorl_bench/agents`), and OPENCODE_RL_ROOT and OPENHANDS_RL_ROOT the real pipelines.
"""

import os
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

FOLDERS: dict[str, tuple[str, dict[str, str]]] = {
    "claude": (CLAUDE, {"CLAUDE_MODEL": "claude-sonnet-4-6", "CLAUDE_TIMEOUT": "36000"}),
    "codex": (CODEX, {"CODEX_MODEL": "gpt-5.2", "CODEX_PROVIDER": "litellm", "CODEX_TIMEOUT": "36000"}),
    "gemini": (GEMINI, {"GEMINI_MODEL": "gemini-2.5-pro", "GEMINI_TIMEOUT": "36000"}),
    "opencode": (OPENCODE, {"MAX_ITERATIONS": "2"}),
    "openhands": (OPENHANDS, {"MAX_ITERATIONS": "2", "LLM_MODEL": "gpt-5.2"}),
    "rdagent": (RDAGENT, {"STEP_N": "200", "LOOP_N": "2"}),
    "example_agent": (EXAMPLE, {"NUM_EPOCHS": "1"}),
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
    return folder


def find_published_folder(name: str) -> Path | None:
    """Return the real folder, if the user has a checkout."""
    agents = os.environ.get("AGENT2RL_PUBLISHED_AGENTS")
    return Path(agents, name) if agents else None
