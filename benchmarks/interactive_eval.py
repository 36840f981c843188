"""How fast is a world graded? The loop of `evaluators/episodes` against one game at a time, in one run.

    python -m benchmarks.interactive_eval [--model DIRECTORY] [--games 134]     two CPU cores, alfworld-mini
    python -m benchmarks.interactive_eval --grading [--games 400]               the same, in the grading child
    python -m benchmarks.interactive_eval --cuda [--shape 7B]                   one GPU, random weights

The rivals, with the same engine, model and world:

    here         all games at once; a conversation's keys and values are kept, so a turn reads what is new
    one by one   one game after the other; at each step the whole conversation is put to the model
    generate     the same, by transformers' own `model.generate` (on a GPU only), as published evaluators of
                 ALFWorld do

On CPU the scores and every action must be the same. On a GPU weights are random and the world says as much as
ALFWorld does: 2,000 tokens before the first action, of which all but 200 are the same in every game (two
played examples), then 40 tokens a turn; each action has 20 tokens. One by one, some games are played and the
time is taken for all: a game costs what any other does.

Measured, one run (H200, torch 2.11, transformers 5.17), 7B shape, 134 games of 8 turns:

    here           152.0 steps/s      7.1 s     1.0x
    one by one       4.5 steps/s    235.9 s    33.4x
    generate         0.9 steps/s   1228.6 s   174.2x

of 30 turns:

    here           135.1 steps/s     29.8 s     1.0x
    one by one       3.7 steps/s   1089.8 s    36.6x
    generate         0.7 steps/s   5708.0 s   191.8x

Two quiet x86_64 cores, the seedling on alfworld-mini's 120 feedback games, 2,400 steps, one run:

    here            85.2 steps/s     28.2 s
    one by one       9.4 steps/s    254.9 s   9.0x   same episodes: True

Two x86_64 cores with little other work, --grading --games 400, one run:

    all cores    400 games graded in 46.1 s, peak memory 2180 MiB
    one process  400 games graded in 78.1 s, peak memory 1697 MiB
    1.69x   same results: True

On the GPU, of a turn's 0.9 s, a third is 20 steps of writing, and a third is reading 41 new tokens of each of
134 games. Whatever makes the decoder faster makes `one by one` faster too: where both wait for memory and
arithmetic alone, they are 52 times apart at this shape (1,072 times 2,250 tokens read and 20 written, against
67,000 read together and 160 steps for all).
"""

import argparse
import random
import re
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from agent2rl import registry
from agent2rl.core.engine import ChatMessage, Completion, Sampling, StatelessConversations
from agent2rl.core.environment import EnvironmentStep
from agent2rl.core.grading_records import EvalResult, EvalSettings
from agent2rl.core.records import Limits
from agent2rl.core.task import Example
from agent2rl.engines.transformers import TransformersEngine, measure_batch_limits, open_engine
from agent2rl.engines.transformers.loading import describe_model
from agent2rl.evaluators.episode_prompts import EpisodePrompt
from agent2rl.evaluators.episodes import Episodes, LiveEpisode, ModelPlayer, play_episodes
from agent2rl.grading.grading_child import GradingChild
from agent2rl.run.assets import prepare_model_directory, write_split_file
from benchmarks.static_eval import SHAPES

SHARED, OWN, TURN, ACTION = 1800, 200, 40, 20
"""Tokens: of every prompt, of a game's own part of it, of an observation, of an action."""


@dataclass
class Alone:
    """An engine that keeps nothing between calls: every turn is told from the start."""

    engine: TransformersEngine
    templated: bool = True

    def generate(self, chats: Any, sampling: Sampling) -> Any:
        return self.engine.generate(chats, sampling)


@dataclass
class Talker:
    """A world that says a set number of words, for a set number of turns."""

    turns: int = 8
    taken: int = 0
    dice: random.Random = field(default_factory=random.Random)

    def reset(self, example: Example) -> EnvironmentStep:
        self.taken, self.dice = 0, random.Random(example.id)
        return EnvironmentStep(self._words(OWN))

    def step(self, _: str) -> EnvironmentStep:
        self.taken += 1
        return EnvironmentStep(self._words(TURN), done=self.taken >= self.turns)

    def close(self) -> None:
        """Nothing is held."""

    def _words(self, count: int) -> str:
        return " ".join(f"w{self.dice.randint(9, 999)}" for _ in range(count))


def on_cpu(task_name: str, model_dir: Path, count: int) -> None:
    task = registry.find_task(task_name)
    games = task.load(None).feedback[:count]
    evaluator = task.evaluator
    assert isinstance(evaluator, Episodes)
    with open_engine(model_dir) as engine:
        evaluator.evaluate(engine, games[:2], EvalSettings())
        here, fast = timed(evaluator, engine, games)
        alone, slow = timed(replace(evaluator, live=1), Alone(engine), games)
    steps = sum(len(result.trajectory) - 1 for result in here.results)
    won = sum(result.score for result in here.results)
    same = here.results == alone.results
    print(f"{len(games)} games of {task_name}, {steps} steps, {won:g} won, {torch.get_num_threads()} threads")
    print(f"here        {steps / fast:8.1f} steps/s  {fast:7.1f} s")
    print(
        f"one by one  {steps / slow:8.1f} steps/s  {slow:7.1f} s   {slow / fast:.1f}x   same episodes: {same}"
    )


def in_the_grading_child(task_name: str, count: int, cache: Path) -> None:
    """Grade the held-out games twice in the real child: in one process for each core, and in one.

    With a limit of two processes there is one, and that of its chat template.
    """
    games = registry.find_task(task_name).load(None).heldout[:count]
    model, results, seconds = prepare_model_directory("seedling", cache), [], []
    for name, processes in (("all cores", 100), ("one process", 2)):
        child = GradingChild(
            sandbox=registry.find_sandbox("bubblewrap"),
            task=task_name,
            engine="transformers",
            settings=EvalSettings(),
            splits={"heldout": write_split_file(games, cache / "games")},
            limits=Limits(memory_bytes=32 << 30, disk_bytes=1 << 30, processes=processes),
            seconds=3600,
        )
        log = cache / name
        results.append(child.grade_model(model, "heldout", log, cache / "scratch", threading.Event()))
        graded, memory = re.findall(r"graded in (.*) s|peak memory (.*) MiB of", log.read_text())
        seconds.append(float(graded[0]))
        print(
            f"{name:12} {len(games)} games graded in {graded[0]} s, peak memory {memory[1]} MiB", flush=True
        )
    print(f"{seconds[1] / seconds[0]:.2f}x   same results: {results[0] == results[1]}")


def timed(evaluator: Episodes, engine: Any, games: Any) -> tuple[EvalResult, float]:
    begin = time.perf_counter()
    found = evaluator.evaluate(engine, games, EvalSettings())
    return found, time.perf_counter() - begin


def on_cuda(shape: str, count: int, few: int, turns: int) -> None:
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    with torch.device("cuda"):
        network = Qwen2ForCausalLM(SHAPES[shape])  # type: ignore[no-untyped-call]
    tokens = words(SHAPES[shape].vocab_size)
    model = replace(describe_model(network, tokens), ends=frozenset())
    examples = [Example(f"game {number}", "", "") for number in range(count)]
    prompt = EpisodePrompt(chat="", plain={"": "w5 " * SHARED}, prompt=" w1 ", stop=())
    sampling = Sampling(max_tokens=ACTION)

    def seconds(talk: Any, played: list[Example], live: int) -> float:
        episodes = [LiveEpisode(example) for example in played]
        torch.cuda.synchronize()
        begin = time.perf_counter()
        play_episodes(episodes, lambda: Talker(turns), ModelPlayer(talk, prompt, False, sampling), live)
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    with TransformersEngine(model, measure_batch_limits(model)) as engine:
        seconds(engine.conversations(), examples[:2], 2)
        fast = seconds(engine.conversations(), examples, count)
        fast = min(fast, seconds(engine.conversations(), examples, count))
        slow = seconds(StatelessConversations(engine), examples[:few], 1) * count / few
        plain = seconds(Generate(network, tokens), examples[:few], 1) * count / few
    steps = count * turns
    print(f"{shape}: {count} games of {turns} turns; {torch.cuda.get_device_name()}")
    for name, taken in (("here", fast), ("one by one", slow), ("generate", plain)):
        print(f"{name:11} {steps / taken:8.1f} steps/s  {taken:7.1f} s   {taken / fast:5.1f}x", flush=True)


def words(count: int) -> PreTrainedTokenizerFast:
    """A token for each word, so that what random weights say is read again as it was said."""
    made = Tokenizer(models.WordLevel({f"w{number}": number for number in range(count)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="w2")  # type: ignore[no-untyped-call]


@dataclass
class Generate:
    """Conversations by `model.generate`, one prompt at a time."""

    network: Any
    tokens: Any
    said: dict[str, str] = field(default_factory=dict)

    def extend(self, turns: Any, sampling: Sampling) -> Any:
        return {name: self._reply(name, chat, sampling) for name, chat in turns.items()}

    def drop(self, names: Any) -> None:
        for name in names:
            self.said.pop(name, None)

    def _reply(self, name: str, chat: tuple[ChatMessage, ...], sampling: Sampling) -> Any:
        text = self.said.get(name, "") + "".join(message.content for message in chat)
        ids = self.tokens(text, return_tensors="pt")["input_ids"].to("cuda")
        out = self.network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=sampling.max_tokens,
            min_new_tokens=sampling.max_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        reply = self.tokens.decode(out[0, ids.shape[1] :])
        self.said[name] = text + reply
        return Completion(reply, sampling.max_tokens)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--model", type=Path, help="a model directory (the seedling)")
    arguments.add_argument("--task", default="alfworld-mini")
    arguments.add_argument("--games", type=int, default=134)
    arguments.add_argument("--grading", action="store_true")
    arguments.add_argument("--cuda", action="store_true")
    arguments.add_argument("--shape", choices=SHAPES, default="7B")
    arguments.add_argument("--turns", type=int, default=8)
    arguments.add_argument("--few", type=int, default=4, help="games that are played one by one on a GPU")
    given = arguments.parse_args()
    if given.cuda:
        on_cuda(given.shape, given.games, given.few, given.turns)
        return
    with tempfile.TemporaryDirectory() as place:
        if given.grading:
            in_the_grading_child(given.task, given.games, Path(place))
            return
        if given.model is None:
            registry.find_model("seedling").write(Path(place))
        on_cpu(given.task, given.model or Path(place), given.games)


if __name__ == "__main__":
    main()
