"""The glossary of metrics: what each number that judges something means, which way is better, and in what unit."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from paperbook.press import toc
from paperbook.study import paths
from paperbook.study.profiles import read_yaml

FIELDS = ("name", "keys", "definition", "direction", "unit")


@dataclass(frozen=True)
class Metric:
    """One entry of ``chapters/<slug>/metrics.yaml``.

    Attributes:
        slug: the chapter.
        name: what the field calls it.
        keys: patterns of result keys, ``*`` for any part: ``slope.*``.
        definition: one sentence; may hold mathematics.
        direction: lower, higher, or the value it should have.
        unit: unit, or of what it is a ratio or share; "1" for a plain number.
    """

    slug: str
    name: str
    keys: tuple[str, ...]
    definition: str
    direction: str
    unit: str

    @property
    def anchor(self) -> str:
        """Id of the entry in the glossary."""
        from docutils.nodes import make_id

        return f"metric-{self.slug}-{make_id(self.name)}"

    def covers(self, key: str) -> bool:
        """Whether a result key is this metric."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys)


def load(slug: str) -> list[Metric]:
    """The metrics of a chapter; an empty list where there is no file.

    Raises:
        ValueError: an entry lacks a field, has one that does not exist, or `keys` is no list.
    """
    path = paths.chapter(slug) / "metrics.yaml"
    if not path.is_file():
        return []
    where = f"chapters/{slug}/metrics.yaml"
    rows: Any = read_yaml(path)
    if not isinstance(rows, list):
        raise ValueError(f"{where}: expected a list of metrics, got {type(rows).__name__}")
    found = []
    for row in rows:
        if not isinstance(row, dict) or set(row) != set(FIELDS):
            raise ValueError(f"{where}: {row.get('name', row) if isinstance(row, dict) else row}: write {', '.join(FIELDS)}")
        if not isinstance(row["keys"], list) or not row["keys"]:
            raise ValueError(f"{where}: {row['name']}: keys: expected a list of result keys, got {row['keys']!r}")
        texts = {key: str(row[key]) for key in FIELDS if key != "keys"}
        found.append(Metric(slug, keys=tuple(map(str, row["keys"])), **texts))
    return found


def of_key(metrics: list[Metric], key: str) -> Metric | None:
    """The metric that a result key is; the first where several cover it."""
    return next((metric for metric in metrics if metric.covers(key)), None)


def judged_keys(slug: str) -> list[str]:
    """Result keys that claims and open choices of a chapter are judged by."""
    from paperbook.study.claims import load_claims

    keys = [claim.evidence.key for claim in load_claims(slug)]
    keys += [str(row["key"]) for row in toc.index(slug).get("open_choices") or [] if row.get("key")]
    return list(dict.fromkeys(keys))
