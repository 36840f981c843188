"""How errands are told: what can be wished, done and seen, and the many ways to say it.

Each errand is told in words drawn anew (`draw_wording`), so that a model learns what is done and not how it
is said. None of them are the words of a task of the benchmark. Half of the errands have commands that nobody
knows.
"""

import random

Dice = random.Random

TREATMENTS = {
    "bake": ("baked", "stove"),
    "paint": ("painted", "garage"),
    "dry": ("dry", "garden"),
    "fill": ("full", "river"),
    "mark": ("marked", "office"),
    "cut": ("cut", "farm"),
    "sort": ("sorted", "library"),
    "sell": ("sold", "market"),
}
"""What can be done to a thing: how it is then, and where."""

ABOUT_PLACE = ("{verb} {0}", "{verb} {0}", "{verb} {0}", "{verb} {the}{0}", "now {verb} {0}", "{0}")
ABOUT_THING = ("{verb} {1}", "{verb} {1}", "{verb} {the}{1}", "{1} {verb}")
ABOUT_BOTH = (
    *("{verb} {1}", "{verb} {1} {by} {0}", "{verb} {1} {by} {0}"),
    *("{verb} {1} {by} {the}{0}", "{by} {0} {verb} {1}"),
)
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "visit": ("walk to|visit|run to|step up to|see|at|head for|reach|near|ride to|try", ABOUT_PLACE),
    "unlock": (
        "unlock|look into|uncover|enter|begin|free|turn|search|break|touch",
        (*ABOUT_PLACE[:4], "{0} {verb}"),
    ),
    "get": ("get|grab|pick up|lift|carry|hold|want|have|keep|catch|find", ABOUT_BOTH),
    "put": ("put|leave|drop|bring|set|give|store|add|return|place", ABOUT_BOTH),
    "treat": ("{2}|{2}|{2}|start to {2}", ABOUT_BOTH),
    "ring": ("ring|call|ask|show it to|meet|start|tell|turn to|work", ABOUT_THING),
}
"""What one can do: ways to say it, and the order in which it is said. {0} is a place, {1} a thing, {2} what
is done to it."""
BY = ("at", "in", "out of", "off", "into", "by", "with", "from", "to", "near", "of", "on", "over")
SYLLABLES = ("ba", "do", "fen", "gri", "ka", "lum", "mo", "nap", "pli", "ro", "sta", "tik", "vi", "wob", "zu")
STRANGE, UNKNOWN = 0.5, 0.6
"""How often there are commands in an errand that nobody knows, and how many of its commands are then such."""

WORDINGS: dict[str, tuple[str, ...]] = {
    "start": (
        "Places: {places}. Wish: {wish}.",
        "{wish}. There is {places}.",
        "Here are {places}.\n{wish}.",
        "We need this: {wish}. Look in {places}.",
        "List of places: {places}\nJob: {wish}",
        "You stand outside. There are {places}. Please {wish}.",
        "You are at home. Here is {places}. The job is: {wish}.",
        "In a house there are {places}. What to do: {wish}.",
        "{places}. {wish}!",
        "It is morning. You find {places}. Your wish: {wish}.",
        "{wish}\n{places}",
    ),
    "told": (
        *("", "", "One line at a time.\n\n", "Play.\n", "What now? Say one thing.\n\n", "Help me. "),
        *("Work. Answer with one line.\n\n", "Answer at once.\n", "Say what you do.\n\n", "Do it well. "),
    ),
    "found": (
        "{the}{0} holds {list}.",
        "At {the}{0} there is {list}.",
        "Here: {list}",
        "{0}: {list}.",
        "There {is_} {list}.",
        "{list}.",
        "In {the}{0}, there {is_} {list}.",
        "On {the}{0}, one finds {list}.",
        "You find {list} at {the}{0}.",
        "{the}{0} has {list}",
    ),
    "locked": (
        *("{the}{0} is locked.", "Locked.", "One cannot look into {the}{0} yet.", "{the}{0} is covered up."),
        *("{the}{0} is shut.", "{0}: not yet.", "{the}{0} must be free first."),
    ),
    "got": (
        *("Now you have {the}{1}.", "{1} is yours.", "You hold {1}, which was in {the}{0}.", "Yes: {1}."),
        *("You carry {the}{1} out of {the}{0}.", "Good.", "You get {the}{1} from {the}{0}."),
    ),
    "put_down": (
        *("{1} is in {the}{0} now.", "{0} has {1}.", "Now {the}{0} holds {the}{1}.", "Good."),
        *("You put {the}{1} into {the}{0}.", "You leave {the}{1} there."),
    ),
    "treated": (
        *("Now {the}{1} is {3}.", "{1}: {3}.", "You {2} {1}.", "It is {3} now.", "{the}{1} is {3}."),
        "You {2} {the}{1} at {the}{0}.",
    ),
    "refused": ("No.", "That does not work.", "You cannot.", "Not now.", "Nothing comes of it."),
    "the": ("", "the "),
    "joint": (", ", ", ", " and ", "; ", " | "),
    "last": ("", "", "and "),
    "article": ("", "", "a ", "a ", "one ", "the ", "some "),
    "none": ("nothing", "nothing", "no things", "only air"),
    "bring": (
        "bring {n} {thing} to {place}",
        "{n} {thing} into {place}",
        "let {place} have {n} {thing}",
        "put {n} {thing} in {place}",
        "find {n} {thing} and bring it to {place}",
    ),
    "bring_treated": (
        "bring {n} {state} {thing} to {place}",
        "{verb} {n} {thing}, then {place} wants it",
        "put {n} {state} {thing} in {place}",
        "{verb} {n} {thing} and put it at {place}",
        "{place} should have {n} {state} {thing}",
    ),
    "meet": ("let {place} see {n} {thing}", "show {n} {thing} to {place}", "read {n} {thing} with {place}"),
    "find": ("find {n} {thing}", "who has {n} {thing}? Get it"),
}
"""Ways to say each part: {0} a place, {1} a thing, {2} what is done to it, {3} how it is then."""

Wording = dict[str, str]


def draw_wording(dice: Dice) -> Wording:
    """How everything is said in one errand."""
    said = {part: dice.choice(ways) for part, ways in WORDINGS.items()}
    strange = dice.random() < STRANGE
    for act, (verbs, orders) in COMMANDS.items():
        unknown = strange and dice.random() < UNKNOWN and act != "treat"
        verb = "".join(dice.choices(SYLLABLES, k=2)) if unknown else dice.choice(verbs.split("|"))
        order = dice.choice(orders)
        said[act] = order.replace("{verb}", verb).replace("{by}", dice.choice(BY))
    return {part: way.replace("{the}", said["the"]) for part, way in said.items()}
