"""Whether a question can be answered in its steps: searches and pages that show all that it stands on.

The walker knows every name of what it looks for, and the words that pages use; but it has to look. Not
covered: finding out other names, for which steps may be left or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent2rl.environments.search.local import LocalCorpus
from agent2rl.tasks.deepsearchqa.facts import FactWorld
from agent2rl.tasks.deepsearchqa.pages import FactPages

Fact = tuple[str, str]
"""The id of a thing, and a link or value of it."""

HINTS = {
    "capital": "capital",
    "country": "lies belongs",
    "home": "campus home",
    "birthplace": "born native",
    "school": "studied attended",
    "employer": "works staff",
    "seat": "seat head office",
    "founder": "founded founder",
    "author": "written author",
    "publisher": "published publisher",
    "setting": "set takes place",
    "place": "stands visitors",
    "architect": "designed architect",
}


@dataclass(frozen=True)
class FactHop:
    """Facts that can be looked for at the same time."""

    facts: tuple[Fact, ...]
    back: bool
    """Whether they are looked for by what they lead to."""


@dataclass
class SearchWalk:
    world: FactWorld
    pages: FactPages
    library: LocalCorpus
    actions: list[str] = field(default_factory=list)
    shown: dict[str, str] = field(default_factory=dict)
    """Documents that were seen, as far as they were."""

    def show_all_facts(self, hops: Sequence[FactHop], most: int) -> bool:
        """Whether all the facts came to be seen in so many actions. One is kept for each hop to come."""
        return all(
            self._take_hop(hop, most - left)
            for left, hop in zip(reversed(range(len(hops))), hops, strict=True)
        )

    def _take_hop(self, hop: FactHop, most: int) -> bool:
        if missing := self._list_missing(hop.facts):
            self._run_search(missing, hop.back)
        for fact in self._list_missing(hop.facts):
            if len(self.actions) > most:
                return False
            if self.pages.told[fact] not in self.shown:
                self._run_search([fact], hop.back)
            if self.pages.told[fact] not in self.shown:
                return False
            if not self._is_shown(fact):
                self._open_document(self.pages.told[fact])
        return not self._list_missing(hop.facts) and len(self.actions) <= most

    def _list_missing(self, facts: Sequence[Fact]) -> list[Fact]:
        return [fact for fact in facts if not self._is_shown(fact)]

    def _is_shown(self, fact: Fact) -> bool:
        seen = self.shown.get(self.pages.told[fact], "")
        thing, key = self.world.things[fact[0]], fact[1]
        names = self.world.things[thing.links[key]].names if key in thing.links else (thing.values[key],)
        return any(name in seen for name in names)

    def _run_search(self, facts: Sequence[Fact], back: bool) -> None:
        about = dict.fromkeys(self.world.things[thing].links[key] if back else thing for thing, key in facts)
        names = [name for thing in about for name in self.world.things[thing].names]
        query = " ".join([*names, *dict.fromkeys(HINTS.get(key, key) for _, key in facts)])
        if (action := f"search[{query}]") in self.actions:
            return
        self.actions.append(action)
        for result in self.library.search(query):
            self.shown.setdefault(result.id, f"{result.title}: {result.snippet}")

    def _open_document(self, document: str) -> None:
        self.actions.append(f"open[{document}]")
        self.shown[document] = self.library.open(document)
