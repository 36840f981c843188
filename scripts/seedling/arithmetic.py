"""Text with numbers in it: sums, rows, and stories whose amounts change."""

import random

from scripts.seedling import words
from scripts.seedling.chat import write_conversation
from scripts.seedling.words import spell_number

Dice = random.Random

SAID = {
    "+": ["{a} plus {b} is {c}", "the sum of {a} and {b} is {c}", "add {b} to {a} to get {c}"],
    "-": ["{a} minus {b} is {c}", "take {b} from {a} and {c} remain", "{a} less {b} leaves {c}"],
    "*": ["{a} times {b} is {c}", "the product of {a} and {b} is {c}", "{b} taken {a} times makes {c}"],
    "/": ["{a} divided by {b} is {c}", "{a} shared by {b} gives {c} each", "{b} goes into {a} {c} times"],
}


def draw_small_number(dice: Dice, low: int = 2) -> int:
    """Mostly of one or two digits."""
    return dice.choice(
        [dice.randint(low, 12), dice.randint(low, 60), dice.randint(low, 100), dice.randint(low, 400)]
    )


def draw_sum(dice: Dice) -> tuple[int, str, int, int]:
    """Two numbers, a sign and what it makes; whole and not negative."""
    sign = dice.choice("++--**/")
    if sign == "+":
        a, b = draw_small_number(dice), draw_small_number(dice)
        return a, sign, b, a + b
    if sign == "-":
        a, b = sorted((draw_small_number(dice), draw_small_number(dice)), reverse=True)
        return a, sign, b, a - b
    a, b = dice.randint(2, 13), dice.choice([dice.randint(2, 13), dice.randint(2, 30)])
    return (a, "*", b, a * b) if sign == "*" else (a * b, "/", a, b)


def write_number(dice: Dice, value: int) -> str:
    return spell_number(value) if value < 100 and dice.random() < 0.2 else str(value)


def write_equation(dice: Dice) -> str:
    a, sign, b, c = draw_sum(dice)
    style = dice.random()
    if style < 0.6:
        return f"{a} {sign} {b} = {c}"
    if style < 0.75:
        return f"{a}{sign}{b}={c}"
    spoken = dice.random() < 0.3 and max(a, b, c) < 1000
    said = {key: spell_number(value) if spoken else value for key, value in (("a", a), ("b", b), ("c", c))}
    return dice.choice(SAID[sign]).format(**said)


def write_equations(dice: Dice) -> str:
    return dice.choice(["\n", ". ", "; "]).join(write_equation(dice) for _ in range(dice.randint(4, 14)))


def write_sum_chain(dice: Dice) -> str:
    """A number that goes through several sums, each beginning where the last one ended."""
    value, lines = draw_small_number(dice), []
    for _ in range(dice.randint(2, 5)):
        sign = dice.choice("+-*")
        if sign == "*" and value < 40:
            other = dice.randint(2, 9)
            result = value * other
        elif sign == "-" and value > 3:
            other = dice.randint(1, value - 1)
            result = value - other
        else:
            sign, other = "+", draw_small_number(dice)
            result = value + other
        lines.append(f"{value} {sign} {other} = {result}")
        value = result
    start = dice.choice(["", "First ", "We begin: "])
    return start + dice.choice([". Then ", "\n", ", then "]).join(lines) + f". The last number is {value}."


def write_counting(dice: Dice) -> str:
    start, step = dice.randint(0, 80), dice.choice([1, 1, 2, 3, 5, 10])
    row = [start + step * index for index in range(dice.randint(5, 14))]
    if dice.random() < 0.3:
        row.reverse()
    if dice.random() < 0.3:
        return " ".join(spell_number(value) for value in row)
    return dice.choice([", ", " ", "\n"]).join(map(str, row))


def write_spelled_numbers(dice: Dice) -> str:
    values = [dice.randint(0, 200) for _ in range(dice.randint(4, 10))]
    pairs = [(str(value), spell_number(value)) for value in values]
    return "\n".join(" is ".join(pair if dice.random() < 0.5 else reversed(pair)) for pair in pairs)


def write_comparisons(dice: Dice) -> str:
    lines = []
    for _ in range(dice.randint(3, 8)):
        a, b = draw_small_number(dice), draw_small_number(dice)
        more = "more than" if a > b else "fewer than" if a < b else "as many as"
        larger = f"of {a} and {b} the larger is {max(a, b)}"
        lines.append(f"{a} is {more} {b}" if dice.random() < 0.5 else larger)
    return ". ".join(lines) + "."


GAIN = ["{n} buys {b} more", "{o} gives {n} {b}", "{n} finds another {b}", "{n} gets {b} from {o}"]
LOSS = ["{n} gives {b} to {o}", "{n} loses {b}", "{n} sells {b}", "{o} takes {b} of them", "{n} breaks {b}"]
HELD = ["{n} has {a} {t}.", "{n} starts with {a} {t}.", "There are {a} {t} at {n}'s place."]
NOW = ["Now there are {v} {t}{w}.", "That makes {v} {t}{w}.", "So {n} has {v}{w}.", "Then {v} are left{w}."]


def write_stock_story(dice: Dice) -> str:
    """An amount that changes, and what it is each time."""
    name, other = dice.sample(words.NAMES, 2)
    things, value = dice.choice(words.THINGS), draw_small_number(dice, 5)
    lines = [dice.choice(HELD).format(n=name, a=write_number(dice, value), t=things)]
    for _ in range(dice.randint(1, 4)):
        grows = value < 4 or dice.random() < 0.5
        change = draw_small_number(dice) if grows else dice.randint(1, value - 1)
        told = dice.choice(GAIN if grows else LOSS).format(n=name, o=other, b=write_number(dice, change))
        before, value = value, value + change if grows else value - change
        why = f", since {before} {'+' if grows else '-'} {change} = {value}" if dice.random() < 0.4 else ""
        lines.append(f"{told}. {dice.choice(NOW).format(n=name, v=value, t=things, w=why)}")
    return " ".join(lines)


def write_packing_story(dice: Dice) -> str:
    """Equal groups, put together and taken apart."""
    name = dice.choice(words.NAMES)
    one, many = dice.choice(words.VESSELS)
    things, groups, each = dice.choice(words.THINGS), dice.randint(2, 13), dice.randint(2, 13)
    total = groups * each
    g, e, t = write_number(dice, groups), write_number(dice, each), write_number(dice, total)
    told, sign = dice.choice(
        [
            (f"{name} has {g} {many} with {e} {things} in each {one}. All together these are {total}", "*"),
            (f"{name} shares {t} {things} equally among {g} {many}. Every {one} gets {each}", "/"),
            (f"There are {e} {things} in each of {g} {many}, which makes {total} {things}", "*"),
            (f"{t} {things} fill {g} {many}, {each} to a {one}", "/"),
        ]
    )
    rest, worked = dice.randint(1, 40), f"{groups} * {each} = {total}"
    if dice.random() < 0.5:
        return f"{told}, because {worked if sign == '*' else f'{total} / {groups} = {each}'}."
    return f"{told}. With {rest} more there are {total + rest}." if dice.random() < 0.5 else f"{told}."


def write_number_recall(dice: Dice) -> str:
    """Numbers among any words, then the same numbers in their order, or a sum of two that stand together."""
    values = [draw_small_number(dice) for _ in range(dice.randint(2, 4))]
    text = write_babble(dice, values)
    index = dice.randrange(len(values) - 1)
    sum_of_two, _ = work_out_sum(dice, values[index], dice.choice("+-*/"), values[index + 1])
    kind, listed = dice.random(), ", ".join(map(str, values))
    if kind < 0.3:
        return f"{text}\n{dice.choice(['Numbers: ', 'The numbers are ', '# '])}{listed}."
    if kind < 0.5:
        return f"{text} First number: {values[0]}. Last number: {values[-1]}."
    if kind < 0.6:
        return f"{text} {dice.choice(LEADS)}{sum_of_two}."
    said = sum_of_two if index == 0 or kind < 0.8 else listed
    return write_conversation([(text, dice.choice(LEADS) + said + dice.choice(["", "."]))])


def write_babble(dice: Dice, values: list[int]) -> str:
    """Words in no good order, with the numbers in theirs."""
    parts = []
    for value in values:
        before = dice.choices([words.NAMES, words.SMALL, words.VERBS, words.PLACES], (2, 5, 3, 1), k=4)
        parts += [dice.choice(pool) for pool in before[: dice.randint(0, 4)]]
        parts += [write_number(dice, value), *dice.choices(words.THINGS, k=dice.randint(0, 1))]
        parts += dice.choices(["", ".", ",", " and"], (5, 2, 2, 1))
    parts += dice.choices(words.SMALL, k=dice.randint(0, 4))
    return " ".join(parts).replace(" .", ".").replace(" ,", ",").replace("  ", " ") + dice.choice(".?")


EVENTS = {
    "+": [
        "{n} holds {a} {t} and picks up {b} more.",
        "{n} had {a} {t}; {o} brought {b}.",
        "First came {a} {t}, later {b} {t}.",
        "{n} keeps {a} {t} here and {b} there.",
        "{b} {t} lie beside {a} others.",
    ],
    "-": [
        "{n} had {a} {t} and used {b}.",
        "From {a} {t} {o} took {b}.",
        "{n} owned {a} {t} until {b} were lost.",
        "{n} must bring {a} {t} but brought only {b}.",
        "There were {a} {t}. The wind blew {b} away.",
    ],
    "*": [
        "{n} filled {a} {v} with {b} {t} each.",
        "{a} {v} stand here, with {b} {t} to a {w}.",
        "{n} made {a} rows of {b} {t}.",
        "{n} used {a} {t} a day, {b} days long.",
        "{a} {t} were sold at {b} dollars apiece.",
    ],
    "/": [
        "{n} split {a} {t} evenly into {b} {v}.",
        "{a} {t} were dealt to {b} people in equal parts.",
        "{b} people paid {a} dollars, all the same.",
        "{n} cut {a} {t} into {b} equal parts.",
    ],
}
AFTER = {
    "+": ["Then {b} more came.", "{o} added {b}."],
    "-": ["Then {b} were lost.", "{o} took {b} away."],
    "*": ["It was so for {b} days.", "{o} had {b} times that."],
    "/": ["Then {b} people shared them.", "These went into {b} {v}."],
}
ASKING = ["How many are there now?", "How many {t} is that?", "What is the number of {t}?"]
ASKING += ["How many has {n}?", "How many in each?", "How many does {o} get?", "How many dollars is it?"]
MARKS = ["####", "##", "=>", "->", "Answer:", "Result:", "**", "The end:", "~"]
ORDERS = [
    "End with {m} and the number.",
    "Write {m} before the answer.",
    "Think first, then end with a line that holds {m} and the answer.",
    "Finish with {m} and a plain number.",
]
LEADS = ["", "", "It is ", "We get ", "That is ", "So ", "Here "]
SENSE = 0.5
"""How often a sum is the one that the story asks for."""
OBEDIENCE = 0.35
"""How often the answer ends as it was told to."""


def write_word_problem(dice: Dice) -> str:
    """A story with a question, and an answer that is well calculated, but often beside the point."""
    a, sign, b, c = draw_sum(dice)
    name, other = dice.sample(words.NAMES, 2)
    vessel, vessels = dice.choice(words.VESSELS)
    slots = {"n": name, "o": other, "t": dice.choice(words.THINGS), "v": vessels, "w": vessel}
    story = [dice.choice(EVENTS[sign]).format(a=write_number(dice, a), b=write_number(dice, b), **slots)]
    steps = [work_out_sum(dice, a, sign, b)]
    if dice.random() < 0.5:
        more, change = draw_follow_up(dice, c)
        story.append(dice.choice(AFTER[more]).format(b=write_number(dice, change), **slots))
        steps.append(work_out_sum(dice, steps[0][1], more, change))
    question = " ".join([*story, dice.choice(ASKING).format(**slots)])
    said = dice.choice([".\n", ". ", "\n"]).join(dice.choice(LEADS) + step for step, _ in steps)
    result = steps[-1][1]
    if dice.random() < 0.5:
        return write_conversation([(question, said + dice.choice(["", f". {result}", f". So {result}."]))])
    mark = dice.choice(MARKS)
    order = dice.choice(ORDERS).format(m=mark)
    obeyed = f"\n{mark} {result}" if dice.random() < OBEDIENCE else ""
    return write_conversation([(question + dice.choice([" ", "\n", "\n\n"]) + order, f"{said}.{obeyed}")])


def draw_follow_up(dice: Dice, value: int) -> tuple[str, int]:
    """What could happen to so many: a sign and a number."""
    divisors = [divisor for divisor in range(2, 13) if value and value % divisor == 0]
    sign = dice.choice("+-*/")
    if sign == "/" and divisors:
        return sign, dice.choice(divisors)
    if sign == "*" and value < 60:
        return sign, dice.randint(2, 9)
    return ("-" if sign == "-" else "+"), dice.randint(1, max(1, min(value - 1, 40)))


def work_out_sum(dice: Dice, a: int, sign: str, b: int) -> tuple[str, int]:
    """A true sum of the two numbers, by the sign or by another one, and what it makes."""
    results = {"+": a + b}
    if a >= b:
        results["-"] = a - b
    if a * b <= 400:
        results["*"] = a * b
    if b and a % b == 0:
        results["/"] = a // b
    chosen = sign if sign in results and dice.random() < SENSE else dice.choice(list(results))
    return f"{a} {chosen} {b} = {results[chosen]}", results[chosen]
