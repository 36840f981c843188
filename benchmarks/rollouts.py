"""Seconds of a GRPO step in a world, against older code and against the limit of the hardware.

    python -m benchmarks.rollouts                              # the seedling after SFT, alfworld-mini
    python -m benchmarks.rollouts --before SRC                 # also older code: the `src` of a checkout
    python -m benchmarks.rollouts --train DATA/train --model DIR                     # official games
    python -m benchmarks.rollouts --train DATA/train --shape 135m --turn-tokens 32   # random weights
    python -m benchmarks.rollouts --train DATA/train --shape 7b --only-play --games 134 --group 1

One step is `--games` games with `--group` episodes each. The first step, in which memory is allocated and
graphs are recorded, is printed by itself. Each code runs in its own process, one after the other. The limit
is printed for a GPU: the bytes of weights and cache that a decode step must read over the measured bandwidth,
and the floating-point operations of the update over the measured rate.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    },
    "7b": {
        "vocab_size": 49152, "hidden_size": 3584, "intermediate_size": 18944,
        "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    },
}  # fmt: skip
SFT_GAMES = 200


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--before", type=Path, help="the `src` folder of older code to compare with")
    parser.add_argument("--before-model", type=Path, help="the model of the older code; else the same")
    parser.add_argument("--model", type=Path, help="a model directory; by default the seedling")
    parser.add_argument(
        "--shape", choices=SHAPES, help="random weights of this shape, with --model's tokenizer"
    )
    parser.add_argument("--train", type=Path, help="a folder of official ALFWorld games; else alfworld-mini")
    parser.add_argument("--games", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turns", type=int, default=30, help="for official games")
    parser.add_argument("--turn-tokens", type=int, help="most tokens of a reply")
    parser.add_argument("--steps", type=int, default=3, help="measured steps, after the first")
    parser.add_argument("--sft-games", type=int, default=SFT_GAMES, help="warm-up; 0 for none")
    parser.add_argument("--only-play", action="store_true", help="no update")
    parser.add_argument("--report", type=Path, help="write the figures to this file, too")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    chosen = parse_arguments()
    if chosen.measure:
        print(json.dumps(measure_steps(chosen)), flush=True)
        return
    with tempfile.TemporaryDirectory() as place:
        start = before = Path(place) / "model"
        prepare_model(chosen, chosen.model, start)
        if chosen.before_model:
            before = Path(place) / "before"
            prepare_model(chosen, chosen.before_model, before)
        figures = {"now": run_measurement(start, None)}
        if chosen.before:
            figures["before"] = run_measurement(before, chosen.before.resolve())
    figures["limit"] = compute_limit(figures["now"])
    for name, figure in figures.items():
        print(name, json.dumps(figure), flush=True)
    if chosen.before:
        ratio = figures["before"]["step_seconds"] / figures["now"]["step_seconds"]
        print(f"A step takes 1/{ratio:.1f} of the time before.")
    if chosen.report:
        chosen.report.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def run_measurement(model: Path, source: Path | None) -> dict[str, Any]:
    """Measure in a child process, with the package of this checkout or of another."""
    environment = dict(os.environ)
    if source:
        environment["PYTHONPATH"] = os.pathsep.join([str(source), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.rollouts", *sys.argv[1:], "--measure", str(model)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def prepare_model(chosen: argparse.Namespace, source: Path | None, directory: Path) -> None:
    """Write the model with which a code starts: after SFT, or with random weights."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from agent2rl.training import models
    from agent2rl.training.progress import TrainingProgress
    from agent2rl.training.sft import SftSettings, imitate
    from benchmarks import world_lift

    source = source or world_lift.SHIPPED
    if chosen.shape:
        tokenizer: Any = AutoTokenizer.from_pretrained(source)
        torch.manual_seed(0)
        config = LlamaConfig(
            **SHAPES[chosen.shape], max_position_embeddings=8192, tie_word_embeddings=chosen.shape == "135m"
        )
        config.eos_token_id = tokenizer.eos_token_id
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            network: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
            model = network.to(torch.bfloat16)
    else:
        model, tokenizer = models.load(source)
    if chosen.sft_games and not chosen.shape:
        with open_subject(chosen) as subject:
            _, rows = subject.shown(model, tokenizer, chosen.sft_games)
        rate = 2e-4 if chosen.train else 1e-3
        imitate(model, rows, SftSettings(rate, 1, 8), TrainingProgress("sft"))
    models.save(model, tokenizer, directory)


def open_subject(chosen: argparse.Namespace) -> Any:
    from benchmarks import world_lift

    return world_lift.subject(
        argparse.Namespace(
            train=chosen.train, train_turns=chosen.turns, test=chosen.train, test_games=1,
            reply_tokens=chosen.turn_tokens, rollout_turns=None, expert=None,
            task="alfworld" if chosen.train else "alfworld-mini",
        )
    )  # fmt: skip


@contextmanager
def open_arena(chosen: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """Yield the arena and its games. Older code is called here, too, so only old names are used."""
    from agent2rl import registry
    from agent2rl.core.environment import World
    from agent2rl.core.task import Example
    from agent2rl.environments.alfworld import AlfworldEnvironment, make_game_finder
    from agent2rl.environments.alfworld.expert import AlfworldExpert
    from agent2rl.run.task_data import open_training_world
    from agent2rl.training.rollouts import Arena

    def build(task: Any, world: Any) -> tuple[Any, Any]:
        evaluator = task.evaluator
        sampling = evaluator.sampling
        if chosen.turn_tokens is not None:
            sampling = replace(sampling, max_tokens=chosen.turn_tokens)
        prompt = getattr(evaluator, "prompt", None) or evaluator.telling
        return (
            Arena(world.environment, prompt, evaluator.action, sampling, evaluator.get_kind),
            world.games,
        )

    if not chosen.train:
        with open_training_world("alfworld-mini", None) as (task, world):
            yield build(task, world)
        return
    names = ["/".join(path.parts[-3:-1]) for path in sorted(chosen.train.glob("*/*/game.tw-pddl"))]
    random.Random(0).shuffle(names)
    find = make_game_finder(chosen.train)
    games = tuple(Example(name, "", "", {"steps": chosen.turns}) for name in names)
    world = World(games, lambda: AlfworldEnvironment(find), AlfworldExpert)
    yield build(registry.find_task("alfworld"), world)


def measure_steps(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return medians over the measured steps."""
    import torch

    from agent2rl.training import models
    from agent2rl.training.grpo import GrpoSettings
    from agent2rl.training.rollouts import EpisodeRollouts, grpo_in_world

    sys.stdout = sys.stderr  # the last line of standard output is the result
    model, tokenizer = models.load(chosen.measure)
    playing: list[float] = []
    tokens: list[int] = []
    name = "sample_rollouts" if hasattr(EpisodeRollouts, "sample_rollouts") else "attempt"  # in older code
    play = getattr(EpisodeRollouts, name)

    def timed(rollouts: Any, job: Any) -> Any:
        began = time.monotonic()
        found = play(rollouts, job)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        playing.append(time.monotonic() - began)
        tokens.append(sum(rollout.tokens for group in found for rollout in group))
        return found

    setattr(EpisodeRollouts, name, timed)
    if chosen.shape:  # random weights never win: rewards are drawn, so that every episode is learnt
        restrict_to_digits(model, tokenizer)
        dice = random.Random(0)
        EpisodeRollouts.reward = lambda *_: dice.random()  # type: ignore[method-assign]
    steps: list[float] = []
    settings = GrpoSettings(
        1e-6, chosen.steps + 1, prompts=chosen.games, group=chosen.group, seed=7,
        pass_tokens=32768 if chosen.train else 1024,
    )  # fmt: skip
    with open_arena(chosen) as (arena, games):
        if chosen.only_play:
            rollouts = EpisodeRollouts(build_sampler(model, tokenizer), arena, games, chosen.group)
            for step in range(chosen.steps + 1):
                began = time.monotonic()
                timed_job = _Job(list(range(chosen.games)), range(chosen.games), step)
                getattr(rollouts, name)(timed_job)
                steps.append(time.monotonic() - began)
        else:
            progress = _StepTimes("grpo", None, 0.0)
            grpo_in_world(model, tokenizer, arena, games, settings, progress)  # type: ignore[arg-type]
            steps = progress.seconds
    sys.stdout = sys.__stdout__
    played = median(playing[1:])
    parameters = sum(weight.numel() for weight in model.parameters())
    said = median(tokens[1:])
    return {
        "step_seconds": round(median(steps[1:]), 2),
        "play_seconds": round(played, 2),
        "update_seconds": round(median(steps[1:]) - played, 2),
        "first_step_seconds": round(steps[0], 2),
        "sampled_tokens": said,
        "sampled_tokens_per_second": round(said / played),
        "parameters": parameters,
    }


def restrict_to_digits(model: Any, tokenizer: Any) -> None:
    """Let random weights generate digits only.

    Their text has the same tokens when it is read again in the next turn, as that of a trained model has.
    Otherwise each turn would be a training sequence of its own.
    """
    import torch

    penalty = torch.full((model.config.vocab_size,), -1e4, device=model.device)
    penalty[tokenizer.convert_tokens_to_ids(list("0123456789"))] = 0.0
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + penalty.to(logits.dtype))


def build_sampler(model: Any, tokenizer: Any) -> Any:
    """Build the sampler of this code or of older code."""
    import inspect

    from agent2rl.training.sampling import PolicySampler

    options = {"fused": True} if "fused" in inspect.signature(PolicySampler).parameters else {}
    return PolicySampler(model, tokenizer, **options)


class _Job:
    def __init__(self, indices: list[int], positions: range, seed: int) -> None:
        self.indices, self.positions, self.seed = indices, positions, seed
        # The names in older code, which is measured in the same run.
        self.asked, self.places = indices, positions


class _StepTimes:
    """Takes the place of the progress report: notes when steps end."""

    def __init__(self, *_: object) -> None:
        self.seconds: list[float] = []
        self.tokens = 0
        self._last = time.monotonic()

    def record_step(self, *_: object) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self._last = now

    def exclude_seconds(self, _: float) -> None: ...


def compute_limit(figure: dict[str, Any]) -> dict[str, Any]:
    """Return what the card needs at least, from its measured bandwidth and bf16 rate."""
    import torch

    if not torch.cuda.is_available():
        return {}
    data = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    bandwidth = 2 * data.numel() / _time_on_device(lambda: data.clone())
    rate = 2 * 8192**3 / _time_on_device(lambda: square @ square)
    weights = 2 * figure["parameters"]
    return {
        "bytes_per_second": f"{bandwidth:.3g}",
        "flops_per_second": f"{rate:.3g}",
        "milliseconds_to_read_the_weights_once": round(1000 * weights / bandwidth, 3),
        "update_flops_per_token": 6 * figure["parameters"],
    }


def _time_on_device(work: Any) -> float:
    import torch

    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    return (time.monotonic() - began) / 10


if __name__ == "__main__":
    main()
