"""Claims: what a paper says, the bound we wrote down before the run, and the verdict computed from a result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paperbook.study.params import nearest
from paperbook.study.paths import chapter
from paperbook.study.profiles import read_yaml
from paperbook.study.record import record, record_read
from paperbook.study.results import load_results
from paperbook.study.statistics import Estimate

Verdict = Literal["holds", "holds weakly", "fails", "not attempted", "measured with older code"]


class ClaimError(ValueError):
    """A claims file or a judgement is not as it must be; the message names the claim."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Criterion(_Strict):
    """A bound on a result; at least one side."""

    at_least: float | None = None
    at_most: float | None = None

    @model_validator(mode="after")
    def _has_a_side(self) -> Criterion:
        if self.at_least is None and self.at_most is None:
            raise ValueError("criterion: expected at_least, at_most or both")
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"criterion: at_least {self.at_least} exceeds at_most {self.at_most}")
        return self

    def __str__(self) -> str:
        if self.at_most is None:
            return f"bound ≥ {self.at_least:g}"
        if self.at_least is None:
            return f"bound ≤ {self.at_most:g}"
        return f"bound [{self.at_least:g}, {self.at_most:g}]"

    def contains(self, value: float) -> bool:
        """Whether `value` satisfies the bound, ends included."""
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


class Evidence(_Strict):
    """Where the number comes from: computed live by a page, or read from its committed result at a profile."""

    page: str
    key: str
    profile: Literal["live", "reader", "full"]


class Claim(_Strict):
    """One row of ``claims.yaml``."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    claim: str = Field(min_length=10)
    kind: Literal["theorem", "table", "figure", "property"]
    where: str
    paper: float | str | None = None
    paper_source: Literal["paper", "code", "secondary", "our choice"]
    criterion: Criterion
    evidence: Evidence
    reason: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict.

    Attributes:
        claim: the claim.
        verdict: computed, one of five.
        ours: the estimate it rests on, if any.
        note: why it was not attempted, or what the verdict was under the older code.
    """

    claim: Claim
    verdict: Verdict
    ours: Estimate | None
    note: str = ""

    def __str__(self) -> str:
        detail = f"{self.claim.criterion}" + (f"; {self.note}" if self.note else "")
        return f"{self.claim.id}: {self.verdict} ({detail})"


class Claims:
    """The claims of one chapter, by id."""

    def __init__(self, slug: str, claims: list[Claim]) -> None:
        self.slug = slug
        self._claims = {claim.id: claim for claim in claims}
        if len(self._claims) < len(claims):
            twice = sorted({c.id for c in claims if sum(d.id == c.id for d in claims) > 1})
            raise ClaimError(f"{slug}/claims.yaml: id used twice: {', '.join(twice)}")

    def __iter__(self) -> Iterator[Claim]:
        return iter(self._claims.values())

    def __len__(self) -> int:
        return len(self._claims)

    def __getitem__(self, claim_id: str) -> Claim:
        if claim_id not in self._claims:
            raise ClaimError(f"{claim_id}: no such claim in {self.slug}{nearest(claim_id, self._claims)}")
        return self._claims[claim_id]

    def judge(self, claim_id: str, ours: float | bool | Estimate | None = None) -> Judgement:
        """Judge one claim on `ours` (live evidence) or on the committed result its evidence names.

        A plain number is exact: it holds or fails. An estimate holds when its whole interval satisfies the bound and
        holds weakly when only its centre does.

        Raises:
            ClaimError: unknown id; `ours` missing for live evidence or given for a committed one; `ours` not finite.
        """
        claim = self[claim_id]
        if claim.evidence.profile == "live":
            if ours is None:
                raise ClaimError(f"{claim_id}: its evidence is live; pass ours=...")
            return _judged(claim, ours)
        if ours is not None:
            raise ClaimError(f"{claim_id}: its evidence is the committed {claim.evidence.profile} result; pass no ours")
        results = load_results(self.slug, claim.evidence.page, claim.evidence.profile)
        if results is None:
            return Judgement(claim, "not attempted", None, claim.reason or f"no {claim.evidence.profile} result is committed")
        judged = _judged(claim, results.estimate(claim.evidence.key))
        if results.code_is_current:
            return judged
        return Judgement(claim, "measured with older code", judged.ours, f"then: {judged.verdict}")

    def verdict(self, claim_id: str, ours: float | bool | Estimate | None = None) -> str:
        """The verdict line a page prints: stable across machines, no digits but those of the bound."""
        judged = self.judge(claim_id, ours)
        if judged.claim.evidence.profile == "live" and judged.ours is not None:
            e = judged.ours
            fields: dict[str, Any] = {"value": e.mean, "low": e.low, "high": e.high, "n": e.n}
            # three digits: enough to read, and the same on every machine; infinities are not JSON
            rounded = {k: (float(f"{v:.3g}") if abs(v) < float("inf") else None) for k, v in fields.items()}
            record("claim", slug=self.slug, id=claim_id, verdict=judged.verdict, **rounded)
        return str(judged)


def load_claims(slug: str) -> Claims:
    """The claims of a chapter.

    Raises:
        ClaimError: when ``claims.yaml`` is missing or a row is not as it must be, naming the row and the field.
    """
    path = chapter(slug) / "claims.yaml"
    record_read(path)
    return Claims(slug, _rows(path))


def _rows(path: Path) -> list[Claim]:
    name = f"{path.parent.name}/claims.yaml"
    if not path.is_file():
        raise ClaimError(f"{name}: no such file")
    rows = read_yaml(path)
    if not isinstance(rows, list):
        raise ClaimError(f"{name}: expected a list of claims, got {type(rows).__name__}")
    claims = []
    for i, row in enumerate(rows):
        label = row.get("id", f"row {i + 1}") if isinstance(row, dict) else f"row {i + 1}"
        try:
            claims.append(Claim.model_validate(row))
        except ValidationError as error:
            detail = "; ".join(f"{'.'.join(map(str, d['loc']))}: {d['msg']}, got {d['input']!r}" for d in error.errors())
            raise ClaimError(f"{name}: {label}: {detail}") from None
    return claims


def _judged(claim: Claim, ours: float | bool | Estimate) -> Judgement:
    if isinstance(ours, Estimate):
        estimate = ours
    else:
        value = float(ours)
        estimate = Estimate(value, value, value, 1)
    if not abs(estimate.mean) < float("inf"):
        raise ClaimError(f"{claim.id}: ours: expected a finite number, got {estimate.mean}")
    if not claim.criterion.contains(estimate.mean):
        return Judgement(claim, "fails", estimate)
    inside = claim.criterion.contains(estimate.low) and claim.criterion.contains(estimate.high)
    return Judgement(claim, "holds" if inside else "holds weakly", estimate)
