"""How the miniature's questions are worded."""

from agent2rl.tasks.deepsearchqa.link_paths import BACK, TARGETS, LinkPath

ONE = {
    "capital": "the capital of {}",
    "country": "the country in which {} lies",
    "home": "the town that is home to {}",
    "birthplace": "the birthplace of {}",
    "school": "the university attended by {}",
    "employer": "the employer of {}",
    "seat": "the town where {} has its head office",
    "founder": "the founder of {}",
    "author": "the author of {}",
    "publisher": "the publisher of {}",
    "setting": "the town in which {} is set",
    "place": "the town that is the site of {}",
    "architect": "the architect of {}",
}
"""Whatever a link leads to."""
CLAUSES = {
    "capital": "that have their capital in {}",
    "country": "that belong to {}",
    "home": "that are at home in {}",
    "birthplace": "who were born in {}",
    "school": "who studied at {}",
    "employer": "who work for {}",
    "seat": "that have their head office in {}",
    "founder": "that were founded by {}",
    "author": "that were written by {}",
    "publisher": "that were published by {}",
    "setting": "that are set in {}",
    "place": "that stand in {}",
    "architect": "that were designed by {}",
    "occupation": "whose profession is {}",
    "trade": "whose business is {}",
    "genre": "that belong to the genre {}",
}
"""Those that a link leads from."""
PLURALS = {
    "country": "countries",
    "town": "towns",
    "university": "universities",
    "person": "people",
    "company": "companies",
    "work": "books",
    "museum": "museums",
}
CATEGORIES = {
    "country": "Geography",
    "town": "Geography",
    "university": "Education",
    "person": "History",
    "company": "Finance & Economics",
    "work": "Arts",
    "museum": "Travel",
}
VALUES = {
    "born": "On which date was {} born?",
    "founded": "In which year was {} founded?",
    "employees": "How many employees does {} have?",
    "population": "How many inhabitants does {} have?",
    "elevation": "How many metres above the sea is the town hall of {}?",
    "independent": "Since which year has {} been independent?",
    "published": "In which year did {} appear?",
    "opened": "In which year did {} open?",
}
EARLIER = {
    "founded": "Which was founded earlier: {} or {}?",
    "population": "Which has more inhabitants: {} or {}?",
    "elevation": "Whose town hall stands higher above the sea: that of {} or that of {}?",
    "independent": "Which has been independent for longer: {} or {}?",
    "employees": "Which has more employees: {} or {}?",
}
SUPERLATIVES = {
    "founded": "Which of the {} was founded first?",
    "published": "Which of the {} appeared first?",
    "opened": "Which of the {} opened first?",
    "population": "Which of the {} has the most inhabitants?",
    "employees": "Which of the {} has the most employees?",
}
MANY = ("population", "elevation", "employees")
"""Of these the largest number is first, of others the smallest."""


def phrase_one(path: LinkPath, name: str) -> str:
    """The one thing that a way forwards leads to."""
    for link in path:
        name = ONE[link].format(name)
    return name


def phrase_all(path: LinkPath, name: str, also: tuple[str, str] | None = None) -> str:
    """All things that a way leads to, those only that have another link too."""
    for link in path:
        name = (
            f"{_pluralize_kind(link)} {CLAUSES[link[1:]]}".format(name)
            if link[0] == BACK
            else ONE[link].format(name)
        )
    return f"{name}, and {CLAUSES[also[0]].format(also[1])}" if also else name


def _pluralize_kind(link: str) -> str:
    return PLURALS[TARGETS[link[1:]][0]]
