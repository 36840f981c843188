"""Small games in ALFWorld's file format, with a domain and a grammar of their own words.

The official engine plays them too: `write` makes files that `benchmarks/alfworld_engine.py` can be given.
"""

import json
import random
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

DOMAIN = """
(define (domain household)
  (:requirements :adl :typing)
  (:types agent location receptacle object rtype otype)
  (:predicates
    (atLocation ?a - agent ?l - location) (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location) (inReceptacle ?o - object ?r - receptacle)
    (inReceptacleObject ?o - object ?p - object) (isReceptacleObject ?o - object)
    (openable ?r - receptacle) (opened ?r - receptacle) (holds ?a - agent ?o - object) (holdsAny ?a - agent)
    (receptacleType ?r - receptacle ?t - rtype) (objectType ?o - object ?t - otype) (checked ?x)
    (canContain ?s - rtype ?t - otype) (pickupable ?o - object) (toggleable ?o - object)
    (isToggled ?o - object) (cleanable ?o - object) (isClean ?o - object) (heatable ?o - object)
    (isHot ?o - object) (coolable ?o - object) (isCool ?o - object) (sliceable ?o - object)
    (isSliced ?o - object))
  (:action look :parameters (?a - agent ?l - location)
    :precondition (atLocation ?a ?l) :effect (checked ?l))
  (:action inventory :parameters (?a - agent) :precondition () :effect (checked ?a))
  (:action help :parameters (?a - agent) :precondition () :effect (checked ?a))
  (:action examineReceptacle :parameters (?a - agent ?r - receptacle)
    :precondition (exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l)))
    :effect (checked ?r))
  (:action examineObject :parameters (?a - agent ?o - object)
    :precondition (holds ?a ?o) :effect (checked ?o))
  (:action GotoLocation :parameters (?a - agent ?s - location ?t - location ?r - receptacle)
    :precondition (and (atLocation ?a ?s) (receptacleAtLocation ?r ?t))
    :effect (and (not (atLocation ?a ?s)) (atLocation ?a ?t)))
  (:action OpenObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (not (opened ?r)))
    :effect (opened ?r))
  (:action CloseObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (openable ?r) (opened ?r))
    :effect (not (opened ?r)))
  (:action PickupObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r) (pickupable ?o)
      (not (holdsAny ?a)) (or (not (openable ?r)) (opened ?r)))
    :effect (and (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l)) (holds ?a ?o) (holdsAny ?a)))
  (:action PutObject
    :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?t - otype ?s - rtype)
    :precondition (and (holds ?a ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (objectType ?o ?t)
      (receptacleType ?r ?s) (canContain ?s ?t) (or (not (openable ?r)) (opened ?r)))
    :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))))
  (:action CleanObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (holds ?a ?o) (cleanable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
      (or (receptacleType ?r SinkType) (receptacleType ?r SinkBasinType)))
    :effect (isClean ?o))
  (:action HeatObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (holds ?a ?o) (heatable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
      (receptacleType ?r MicrowaveType))
    :effect (and (isHot ?o) (not (isCool ?o))))
  (:action CoolObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (holds ?a ?o) (coolable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
      (receptacleType ?r FridgeType))
    :effect (and (isCool ?o) (not (isHot ?o))))
  (:action ToggleObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (toggleable ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r))
    :effect (isToggled ?o))
  (:action SliceObject :parameters (?a - agent ?l - location ?co - object ?ko - object)
    :precondition (and (holds ?a ?ko) (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType))
      (sliceable ?co) (atLocation ?a ?l) (objectAtLocation ?co ?l))
    :effect (isSliced ?co)))
"""

CLUTTER = (
    "atlocation(a:agent, l:location) & objectatlocation(o:object, l:location)"
    " & receptacleatlocation(r:receptacle, l:location) & not_inreceptacle(o:object, r:receptacle)"
)
HERE = "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)"
CONTENTS = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"
RULES: Mapping[str, list[dict[str, str]]] = {
    "intro": [{"rhs": "Welcome home.\n\n#look.feedback#\n\n#task#"}],
    "look.feedback": [
        {"condition": HERE, "rhs": "#front#. Beside: #list_objects_on_the_floor#."},
        {"rhs": "All around: #list_appliances#."},
    ],
    "front": [{"rhs": "Before you: [{r.name | " + HERE + "}]"}],
    "list_objects_on_the_floor": [
        {"condition": CLUTTER, "rhs": "[{#one(o)# | " + CLUTTER + "}]"},
        {"rhs": "no thing"},
    ],
    "list_appliances": [
        {
            "condition": "receptacleatlocation(r:receptacle, l:location)",
            "rhs": "[{#one(r)# | receptacleatlocation(r:receptacle, l:location)}]",
        },
        {"rhs": "no place"},
    ],
    "one(o)": [{"rhs": "{o.indefinite} {o.name}"}],
    "one(r)": [{"rhs": "{r.indefinite} {r.name or r.id}"}],
    "examineReceptacle.feedback": [
        {
            "condition": "openable(r:receptacle) & opened(r:receptacle)",
            "rhs": "In the open {r.name}: " + CONTENTS + ".",
        },
        {"condition": "openable(r:receptacle)", "rhs": "The {r.name} is shut."},
        {"rhs": "On the {r.name}: " + CONTENTS + "."},
    ],
    "examineObject.feedback": [
        {
            "condition": "isreceptacleobject(o:object)",
            "rhs": "Inside the {o.name}: "
            "[{i.indefinite + ' ' + i.name | inreceptacleobject(i:object, o:object)}].",
        },
        {"condition": "ishot(o:object) & isclean(o:object)", "rhs": "The {o.name} is hot and clean."},
        {"condition": "ishot(o:object)", "rhs": "The {o.name} is hot."},
        {"condition": "iscool(o:object)", "rhs": "The {o.name} is cool."},
        {"condition": "isclean(o:object)", "rhs": "The {o.name} is clean."},
        {"condition": "issliced(o:object)", "rhs": "The {o.name} is sliced."},
        {"rhs": "Just the {o.name}."},
    ],
    "inventory.feedback": [
        {
            "condition": "holdsany(a:agent)",
            "rhs": "In hand: [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}].",
        },
        {"rhs": "Nothing in hand."},
    ],
    "list_empty": [{"rhs": "nothing"}],
    "list_separator": [{"rhs": ", "}],
    "list_last_separator": [{"rhs": ", and "}],
}
WORDS: Mapping[str, tuple[str, str]] = {
    "GotoLocation": ("go to [{r.name | receptacleatlocation(r:receptacle, t:location)}]", "There. #SEEN#"),
    "OpenObject": ("open {r}", "Open now. #SEEN#"),
    "CloseObject": ("close {r}", "You shut the {r.name}."),
    "PickupObject": ("take {o} from {r}", "You take the {o.name} off the {r.name}."),
    "PutObject": ("move {o} to {r}", "You leave the {o.name} at the {r.name}."),
    "examineReceptacle": ("examine {r}", "#SEEN#"),
    "examineObject": ("examine {o}", "#examineObject.feedback#"),
    "ToggleObject": ("use {o}", "Light from the {o.name}."),
    "HeatObject": ("heat {o} with {r}", "The {r.name} heats the {o.name}."),
    "CleanObject": ("clean {o} with {r}", "The {r.name} cleans the {o.name}."),
    "CoolObject": ("cool {o} with {r}", "The {r.name} cools the {o.name}."),
    "SliceObject": ("slice {co} with {ko}", "The {ko.name} cuts the {co.name}."),
    "look": ("look", "#look.feedback#"),
    "inventory": ("inventory", "#inventory.feedback#"),
    "help": ("help", "\nTry anything.\n"),
}
OLD_WORDS = {**WORDS, "PutObject": ("put {o} in/on {r}", "You put the {o.name} in/on the {r.name}.")}

PLACE = "(:goal (and (exists (?r - receptacle) (exists (?o - object) (and {} (inReceptacle ?o ?r))))))"
OF = "(objectType ?o {}Type) (receptacleType ?r {}Type)"
GOALS = {
    "pick_and_place_simple": PLACE.format(OF.format("Mug", "Fridge")),
    "pick_clean_then_place_in_recep": PLACE.format(
        OF.format("Mug", "Table") + " (cleanable ?o) (isClean ?o)"
    ),
    "pick_heat_then_place_in_recep": PLACE.format(OF.format("Apple", "Table") + " (heatable ?o) (isHot ?o)"),
    "pick_cool_then_place_in_recep": PLACE.format(OF.format("Apple", "Shelf") + " (coolable ?o) (isCool ?o)"),
    "look_at_obj_in_light": """(:goal (and
        (exists (?x - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?x DeskLampType)
            (toggleable ?x) (isToggled ?x) (inReceptacle ?x ?r) (receptacleAtLocation ?r ?l)
            (atLocation ?a ?l)))
        (exists (?o - object ?a - agent) (and (objectType ?o AppleType) (holds ?a ?o)))))""",
    "pick_two_obj_and_place": """(:goal (and (exists (?r - receptacle) (exists (?o - object)
        (and (objectType ?o MugType) (receptacleType ?r CabinetType) (inReceptacle ?o ?r)
            (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p MugType) (receptacleType ?r CabinetType)
                (inReceptacle ?p ?r))))))))""",
}

THINGS = {
    "Mug": "pickupable cleanable heatable coolable",
    "Apple": "pickupable cleanable heatable coolable sliceable",
    "Knife": "pickupable cleanable",
    "Plate": "pickupable cleanable isReceptacleObject",
    "DeskLamp": "toggleable",
    "Statue": "",
}
FIXTURES = {"Table": "", "Shelf": "", "Cabinet": "openable", "Fridge": "openable"}
FIXTURES |= {"Microwave": "openable", "Sink": ""}

FITTING = ("Mug", "Apple", "Knife")
"""What every fixture takes; a plate in hand stays there."""

KITCHEN = """
    (receptacleAtLocation Table_bar_1 loc_bar_1) (receptacleAtLocation Shelf_bar_1 loc_bar_1)
    (receptacleAtLocation Cabinet_bar_1 loc_bar_2) (receptacleAtLocation Cabinet_bar_2 loc_bar_3)
    (receptacleAtLocation Fridge_bar_1 loc_bar_4) (receptacleAtLocation Microwave_bar_1 loc_bar_5)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_6)
    (inReceptacle Mug_bar_1 Table_bar_1) (inReceptacle Mug_bar_2 Cabinet_bar_1)
    (inReceptacle Apple_bar_1 Table_bar_1) (inReceptacle Apple_bar_1 Shelf_bar_1)
    (inReceptacle Knife_bar_1 Shelf_bar_1) (inReceptacle DeskLamp_bar_1 Table_bar_1)
    (inReceptacle Plate_bar_1 Shelf_bar_1) (inReceptacleObject Knife_bar_1 Plate_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1) (objectAtLocation Mug_bar_2 loc_bar_2)
    (objectAtLocation Apple_bar_1 loc_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
    (objectAtLocation DeskLamp_bar_1 loc_bar_1) (objectAtLocation Plate_bar_1 loc_bar_1)
    (atLocation agent1 loc_bar_9)
"""
"""Table and shelf stand in one place, and the apple is listed in both."""


def game(
    goal: str = "pick_and_place_simple", facts: str = KITCHEN, words: Mapping[str, tuple[str, str]] = WORDS
) -> dict[str, object]:
    """What a game file holds, of one of the six types, in a house of which only the places need be said."""
    return {
        "pddl_domain": DOMAIN,
        "grammar": grammar(words),
        "pddl_problem": problem(facts, GOALS[goal]),
        "solvable": True,
        "walkthrough": [],
    }


def grammar(words: Mapping[str, tuple[str, str]]) -> str:
    rules = json.dumps({**RULES, "task": [{"rhs": "Your task is to: do as told."}]}, indent=1)
    actions = (
        f'action {action} {{ template :: "{template}"; feedback :: "{answer}"; }}\n'
        for action, (template, answer) in words.items()
    )
    return f'grammar :: """\n{rules}\n""";\n' + "".join(actions).replace(
        "#SEEN#", "#examineReceptacle.feedback#"
    )


def problem(facts: str, goal: str) -> str:
    """A whole problem: the kinds of things and fixtures, which go without saying, and what is said."""
    ids = {name: name.partition("_")[0] for name in sorted(set(re.findall(r"[A-Z]\w*_bar_\w+", facts)))}
    things = {name: kind for name, kind in ids.items() if kind in THINGS}
    fixtures = {name: kind for name, kind in ids.items() if kind in FIXTURES}
    places = " ".join(sorted(set(re.findall(r"\bloc_bar_\d+", facts))))
    said = [f"(objectType {name} {kind}Type)" for name, kind in things.items()]
    said += [f"(receptacleType {name} {kind}Type)" for name, kind in fixtures.items()]
    said += [f"(canContain {fixture}Type {thing}Type)" for fixture, thing in product(FIXTURES, FITTING)]
    said += [f"({fact} {name})" for name, kind in things.items() for fact in THINGS[kind].split()]
    said += [f"({fact} {name})" for name, kind in fixtures.items() for fact in FIXTURES[kind].split()]
    rtypes = " ".join(f"{kind}Type" for kind in FIXTURES)
    otypes = " ".join(f"{kind}Type" for kind in THINGS)
    return f"""(define (problem house) (:domain household)
      (:objects agent1 - agent {" ".join(things)} - object {" ".join(fixtures)} - receptacle
        {places} - location {rtypes} SinkBasinType - rtype {otypes} ButterKnifeType - otype)
      (:init {" ".join(said)} {facts})
      {goal})"""


def random_house(chance: random.Random) -> str:
    """Facts of a house: fixtures share places, and things may be in two fixtures or, of many, in none.

    Every goal can be reached: the official engine does not load a game otherwise.
    """
    fixtures = [f"{kind}_bar_{number}" for kind in FIXTURES for number in range(chance.randint(1, 2))]
    facts = []
    for fixture in fixtures:
        facts.append(f"(receptacleAtLocation {fixture} loc_bar_{chance.randint(1, 4)})")
    for kind in THINGS:
        for number in range(chance.randint(2, 3)):
            thing = f"{kind}_bar_{number}"
            facts.append(f"(objectAtLocation {thing} loc_bar_{chance.randint(1, 4)})")
            homes = chance.sample(fixtures, chance.choice([1, 1, 2] if number < 2 else [0, 1, 2]))
            facts += [f"(inReceptacle {thing} {fixture})" for fixture in homes]
    facts.append(f"(atLocation agent1 loc_bar_{chance.choice([1, 9])})")
    return "\n".join(facts)


def write(folder: Path, count: int) -> None:
    """Files of random houses, for the official engine."""
    for number in range(count):
        chance = random.Random(number)
        goal = chance.choice(list(GOALS))
        file = folder / goal / f"trial_{number}" / "game.tw-pddl"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = WORDS if number % 2 else OLD_WORDS
        file.write_text(json.dumps(game(goal, random_house(chance), words)), encoding="utf-8")
