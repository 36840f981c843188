"""Abacus: a tiny model that reads a word problem and picks what to calculate. It learns in a second.

The words of the question, hashed, go through one linear layer to a softmax over programs: words over
`+ - * /` that are applied from left to right to the question's numbers. It writes the steps and `#### N`.
It cannot reorder numbers or take more than two steps, so on harder problems it stays poor.

    abacus = Abacus.load(base_model_dir)
    abacus.fit(questions, answers)          # supervised: any program that gives the gold number is right
    abacus.reinforce(questions, reward)     # online: samples programs and follows the reward
    abacus.save(output_dir)
"""

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from agent2rl.core.engine import Chat
from agent2rl.core.errors import GradingError
from agent2rl.core.model import ShippedModel
from agent2rl.evaluators.scorers import MARKER, final_answer

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Progress = Callable[[int, float], None]
"""Callback with the number of rounds done, and the share of right answers in the last one."""

FEATURES = 2048
PROGRAMS = tuple("".join(signs) for steps in (1, 2) for signs in product("+-*/", repeat=steps))
SHAPES = {"head.weight": (len(PROGRAMS), FEATURES), "head.bias": (len(PROGRAMS),)}
WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
SIGNALS = {"twice": 2, "double": 2, "half": 2, "triple": 3, "dozen": 12}
"""Words that are a number and also hint at the operation."""
NUMBERS = {word: value for value, word in enumerate(WORDS, start=2)} | SIGNALS
BATCH = 32

_TOKEN = re.compile(r"[0-9][0-9,]{0,15}(?:\.[0-9]{1,8})?|[a-z]+")


@dataclass(frozen=True)
class AbacusStep:
    left: Fraction
    sign: str
    right: Fraction
    result: Fraction

    def __str__(self) -> str:
        sides = f"{self.left}{self.sign}{self.right}={self.result}"
        return f"{self.left} {self.sign} {self.right} = <<{sides}>>{self.result}"


@dataclass(frozen=True)
class ParsedQuestion:
    """The model's view of a question: its features, and each program's result on its numbers."""

    features: tuple[int, ...]
    runs: tuple[tuple[AbacusStep, ...], ...]
    """The steps of each program; empty if there are too few numbers or a result is not above zero."""

    @classmethod
    def from_question(cls, question: str) -> Self:
        # Instructions follow the question after an empty line; they are the same for all, so drop them.
        tokens = _TOKEN.findall(question.partition("\n\n")[0].lower())
        numbers = [number for token in tokens if (number := _parse_number(token)) is not None]
        words = [token if token in SIGNALS or _parse_number(token) is None else "#" for token in tokens]
        grams = [*words, *(f"{left} {right}" for left, right in pairwise(words)), f"{len(numbers)} numbers"]
        features = {zlib.crc32(gram.encode()) % FEATURES for gram in grams}
        return cls(tuple(sorted(features)), tuple(_run_program(program, numbers) for program in PROGRAMS))

    @property
    def scale(self) -> float:
        """The value of each feature: long questions weigh no more than short ones."""
        return float(len(self.features) ** -0.5)

    @property
    def allowed(self) -> list[bool]:
        return [bool(steps) for steps in self.runs]

    def mark_programs_reaching(self, number: Fraction | None) -> list[bool]:
        """Return which programs result in the number."""
        return [bool(steps) and steps[-1].result == number for steps in self.runs]

    def write_answer(self, program: int) -> str:
        """Return the worked answer of an allowed program."""
        steps = self.runs[program]
        return "\n".join([*(str(step) for step in steps), f"{MARKER} {steps[-1].result}"])


@dataclass
class Abacus:
    weight: Floats
    bias: Floats

    @classmethod
    def base(cls) -> Self:
        """Return the untrained model: small weights, the same bits on every machine."""
        draw = np.random.RandomState(0).random_sample
        tensors = [((draw(shape) - 0.5) * 0.02).astype(np.float32) for shape in SHAPES.values()]
        return cls(*tensors)

    @classmethod
    def load(cls, model_dir: Path | str) -> Self:
        path = Path(model_dir) / "model.safetensors"
        try:
            tensors = load_file(path)
        except (OSError, SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"cannot read {path.name} of the abacus: {error}") from error
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if shapes != SHAPES:
            raise ValueError(f"an abacus has the tensors {SHAPES}, not {shapes}")
        with np.errstate(over="ignore"):
            weight, bias = (tensors[name].astype(np.float32) for name in SHAPES)
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise ValueError("the weights of the abacus contain NaN or infinity")
        return cls(weight, bias)

    def save(self, model_dir: Path | str) -> None:
        directory = Path(model_dir)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["AbacusForWordProblems"],
            "model_type": "abacus",
            "input_size": FEATURES,
            "num_programs": len(PROGRAMS),
            "programs": list(PROGRAMS),
        }
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file({"head.weight": self.weight, "head.bias": self.bias}, directory / "model.safetensors")

    def answer(self, question: str) -> str:
        reading = ParsedQuestion.from_question(question)
        if not any(reading.allowed):
            return "I cannot tell."
        return reading.write_answer(int(self._compute_probabilities([reading])[0].argmax()))

    def fit(
        self,
        questions: Sequence[str],
        answers: Sequence[str],
        epochs: int = 20,
        seed: int = 0,
        learning_rate: float = 4.0,
        progress: Progress | None = None,
    ) -> None:
        """Learn from worked answers, of which only the number after #### counts.

        Each question raises the programs that give its number, in proportion to their current probability;
        a question that no program solves is left out.
        """
        readings = [ParsedQuestion.from_question(question) for question in questions]
        pairs = zip(readings, answers, strict=True)
        right = np.array(
            [reading.mark_programs_reaching(final_answer(answer)) for reading, answer in pairs], dtype=bool
        )
        solvable = np.flatnonzero(right.reshape(-1, len(PROGRAMS)).any(axis=1))
        dice = np.random.default_rng(seed)
        for epoch in range(epochs):
            hits = 0
            for rows in _shuffle_batches(solvable, dice):
                batch = [readings[row] for row in rows]
                chances = self._compute_probabilities(batch)
                wanted = (chances + 1e-12) * right[rows]
                wanted /= wanted.sum(axis=1, keepdims=True)
                self._apply_gradient(batch, wanted - chances, learning_rate)
                hits += int(right[rows, chances.argmax(axis=1)].sum())
            if progress:
                progress(epoch + 1, hits / max(1, len(questions)))

    def reinforce(
        self,
        questions: Sequence[str],
        reward: Callable[[str, str], float],
        steps: int = 400,
        seed: int = 0,
        learning_rate: float = 4.0,
        progress: Progress | None = None,
    ) -> None:
        """Learn from `reward(question, answer)` of answers that the model samples itself (REINFORCE).

        Each step samples one answer to each question of a batch, whose mean reward is the baseline.
        """
        readings = [ParsedQuestion.from_question(question) for question in questions]
        able = np.array([row for row, reading in enumerate(readings) if any(reading.allowed)])
        dice = np.random.default_rng(seed)
        for step in range(steps if len(able) else 0):
            rows = dice.choice(able, size=BATCH)
            batch = [readings[row] for row in rows]
            chances = self._compute_probabilities(batch)
            chosen = [int(dice.choice(len(PROGRAMS), p=chance)) for chance in chances]
            answers = [reading.write_answer(program) for reading, program in zip(batch, chosen, strict=True)]
            rewards = np.array(
                [reward(questions[row], text) for row, text in zip(rows, answers, strict=True)]
            )
            advantages = (rewards - rewards.mean())[:, None]
            self._apply_gradient(batch, advantages * (np.eye(len(PROGRAMS))[chosen] - chances), learning_rate)
            if progress:
                progress(step + 1, float(rewards.mean()))

    def _compute_probabilities(self, readings: Sequence[ParsedQuestion]) -> Doubles:
        """Return the probability of each program, for readings that allow at least one. It uses double
        precision, in which finite weights cannot overflow."""
        # A question has few features: adding their columns up is cheaper than multiplying whole matrices, for
        # which NumPy starts threads that then wait for each other.
        sums = [
            self.weight[:, reading.features].sum(axis=1, dtype=np.float64) * reading.scale
            for reading in readings
        ]
        logits = np.array(sums) + self.bias
        logits[~np.array([reading.allowed for reading in readings])] = -np.inf
        chances: Doubles = np.exp(logits - logits.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        return chances

    def _apply_gradient(
        self, readings: Sequence[ParsedQuestion], pull: Doubles, learning_rate: float
    ) -> None:
        pull = pull * (learning_rate / len(readings))
        change = np.zeros(self.weight.shape)
        for reading, pulls in zip(readings, pull, strict=True):
            change[:, reading.features] += pulls[:, None] * reading.scale
        self.weight += change.astype(np.float32)
        self.bias += pull.sum(axis=0).astype(np.float32)


def solver(model_dir: Path) -> Callable[[Chat], str]:
    """Load the model for the scripted engine; it answers the last user message of a chat."""
    try:
        abacus = Abacus.load(model_dir)
    except ValueError as error:
        raise GradingError(
            f"The model cannot be loaded: {error}.",
            "Save it with Abacus.save, and check that training is stable.",
        ) from error

    def answer(chat: Chat) -> str:
        return abacus.answer(next((turn.content for turn in reversed(chat) if turn.role == "user"), ""))

    return answer


def _parse_number(token: str) -> Fraction | None:
    if token in NUMBERS:
        return Fraction(NUMBERS[token])
    return Fraction(token.replace(",", "")) if token[0].isdigit() else None


def _run_program(program: str, numbers: Sequence[Fraction]) -> tuple[AbacusStep, ...]:
    steps: list[AbacusStep] = []
    for index, sign in enumerate(program):
        if index + 1 >= len(numbers) or (sign == "/" and numbers[index + 1] == 0):
            return ()
        left = steps[-1].result if steps else numbers[0]
        result = _apply_sign(left, sign, numbers[index + 1])
        if result <= 0:
            return ()
        steps.append(AbacusStep(left, sign, numbers[index + 1], result))
    return tuple(steps)


def _apply_sign(left: Fraction, sign: str, right: Fraction) -> Fraction:
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right


def _shuffle_batches(rows: npt.NDArray[np.intp], dice: "np.random.Generator") -> list[npt.NDArray[np.intp]]:
    shuffled = dice.permutation(rows)
    return [shuffled[start : start + BATCH] for start in range(0, len(rows), BATCH)]


def write(model_dir: Path) -> None:
    Abacus.base().save(model_dir)


MODEL: ShippedModel = ShippedModel(id="abacus", engine="scripted:agent2rl.models.abacus:solver", write=write)
