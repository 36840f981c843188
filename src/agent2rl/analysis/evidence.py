"""What findings rest on. Each piece has an id, and whoever says something of a run cites it."""

from dataclasses import dataclass, field

from agent2rl.analysis.findings import Evidence, EvidenceKind

LONGEST_QUOTE = 400


@dataclass
class EvidenceBook:
    """Collects evidence; the same piece has the same id, and ids are given in the order of asking."""

    _pieces: dict[tuple[str, str, str], Evidence] = field(default_factory=dict)

    def add_evidence(self, kind: EvidenceKind, where: str, text: str, at: float | None = None) -> str:
        """The id of a piece of evidence."""
        key = (kind, where, text)
        if key not in self._pieces:
            name = f"E{len(self._pieces) + 1}"
            shown = text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"
            self._pieces[key] = Evidence(id=name, kind=kind, where=where, text=shown, at=at)
        return self._pieces[key].id

    @property
    def pieces(self) -> tuple[Evidence, ...]:
        return tuple(self._pieces.values())
