"""The claims of all chapters with their verdicts: live ones from the executed pages, the others from committed results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paperbook.press import stamp, toc
from paperbook.study import paths
from paperbook.study.claims import Claim, load_claims

VERDICTS = ("holds", "holds weakly", "fails", "measured with older code", "not attempted")

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Row:
    """One claim as the ledger shows it.

    Attributes:
        slug: the chapter.
        claim: the claim as written in claims.yaml.
        verdict: one of :data:`VERDICTS`.
        ours: what was measured, as ``{"mean", "low", "high", "n"}`` (None for an end that is infinite); None: nothing.
        note: why it was not attempted, or the verdict under older code.
    """

    slug: str
    claim: Claim
    verdict: str
    ours: dict[str, Any] | None
    note: str = ""

    @property
    def value(self) -> str:
        """Ours in three digits, with interval and n where there are any."""
        if self.ours is None:
            return "–"
        mean, low, high, n = (self.ours[key] for key in ("mean", "low", "high", "n"))
        if low is None or high is None or (low == high == mean):
            return digits(mean)
        return f"{digits(mean)} [{digits(low)}, {digits(high)}]" + (f", {n} seeds" if n and n > 1 else "")


def digits(value: Any) -> str:
    """A number in three significant digits, anything else as text; None gives a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e6):
        return f"{int(value):,}".replace(",", "\u202f").replace("-", "−")  # narrow no-break space between thousands
    text = f"{value:.3g}"
    match = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", text)
    if match:
        text = f"{match[1]}·10" + str(int(match[2])).translate(_RAISED)
    return text.replace("-", "−")


def rows(slug: str) -> list[Row]:
    """All claims of one chapter, in the order of claims.yaml; a chapter without the file has none.

    Raises:
        ClaimError, ResultError: a damaged claims or results file.
    """
    if not (paths.chapter(slug) / "claims.yaml").is_file():
        return []
    claims = load_claims(slug)
    live = _live(slug)
    found = []
    for claim in claims:
        if claim.evidence.profile == "live":
            found.append(_live_row(slug, claim, live.get((claim.evidence.page, claim.id))))
            continue
        judged = claims.judge(claim.id)
        found.append(Row(slug, claim, judged.verdict, _plain(judged.ours), judged.note))
    return found


def all_rows(slugs: Iterable[str] | None = None) -> list[Row]:
    """The claims of all chapters in _toc.yml (or of `slugs`), in the order of the book."""
    return [row for slug in (toc.toc_slugs() if slugs is None else slugs) for row in rows(slug)]


def totals(found: Iterable[Row]) -> dict[str, int]:
    """How often each verdict occurs, in the order of :data:`VERDICTS`, zeros included."""
    counts = Counter(row.verdict for row in found)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def totals_text(found: list[Row]) -> str:
    """``12 claims: 9 hold, 1 fails, 2 not attempted``; verdicts that do not occur are left out."""
    names = {"holds": ("holds", "hold"), "holds weakly": ("holds weakly", "hold weakly"), "fails": ("fails", "fail")}
    parts = []
    for verdict, count in totals(found).items():
        one, many = names.get(verdict, (verdict, verdict))
        if count:
            parts.append(f"{count} {one if count == 1 else many}")
    word = "claim" if len(found) == 1 else "claims"
    return f"{len(found)} {word}: {', '.join(parts)}" if parts else "no claims yet"


def _live(slug: str) -> dict[tuple[str, str], dict[str, Any]]:
    """(page, claim id) -> what the page recorded when it was executed."""
    return {
        (page, row["id"]): row
        for page, path in toc.executed(slug).items()
        for row in stamp.stored_metadata(path).get("claims", [])
        if row.get("slug") == slug
    }


def _live_row(slug: str, claim: Claim, recorded: dict[str, Any] | None) -> Row:
    if recorded is None:
        return Row(slug, claim, "not attempted", None, claim.reason or f"page {claim.evidence.page} judges it not")
    ours = {"mean": recorded["value"], "low": recorded["low"], "high": recorded["high"], "n": recorded["n"]}
    return Row(slug, claim, recorded["verdict"], ours)


def _plain(estimate: Any) -> dict[str, Any] | None:
    if estimate is None:
        return None
    finite = {key: getattr(estimate, key) for key in ("mean", "low", "high")}
    return {key: (value if abs(value) < float("inf") else None) for key, value in finite.items()} | {"n": estimate.n}
