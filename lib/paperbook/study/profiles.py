"""Profiles: the scales at which a page runs. Smoke is the page's own parameters cell; the others are YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from paperbook.study.paths import chapter, profile_file
from paperbook.study.record import record_read

PROFILES = ("smoke", "reader", "full")


def load_profile(slug: str, page: str, profile: str) -> dict[str, Any]:
    """Parameters of `page` at `profile`, as papermill's ``-f`` would inject them.

    Raises:
        FileNotFoundError: when the page has no such profile, naming those it has.
        ValueError: when the file is not a mapping of names to values, or its ``profile`` names another scale.
    """
    path = profile_file(slug, page, profile)
    record_read(path)
    if not path.is_file():
        there = ", ".join(list_profiles(slug)) or "none"
        raise FileNotFoundError(f"profile: {slug} has no {path.name}; its profiles are: {there}")
    values = read_yaml(path)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ValueError(f"{path.name}: expected a mapping of parameter names to values, got {type(values).__name__}")
    if values.get("profile", profile) not in PROFILES:
        raise ValueError(f"{path.name}: profile: expected one of {', '.join(PROFILES)}, got {values['profile']!r}")
    return values


def list_profiles(slug: str) -> list[str]:
    """File names of a chapter's profiles, sorted."""
    return sorted(path.name for path in (chapter(slug) / "profiles").glob("*.yaml"))


def read_yaml(path: Path) -> Any:
    """The parsed content of a YAML file, by the safe loader (no object can be built from it).

    Raises:
        ValueError: naming the file and the line when it is not YAML.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from None
