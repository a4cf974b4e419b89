"""Stand-ins under their real names: ``python tests/rehearsal/hub.py FOLDER [CHAPTER]...`` writes a hub cache full of toys.

With ``HF_HOME=FOLDER HF_HUB_OFFLINE=1`` a full profile then finds "its" weights and data by name and commit, on a laptop.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))


def chapter_standins(slug: str) -> ModuleType:
    """The module ``tests/chapters/<slug>/standins.py``; its ``HUB`` maps a hub id to what builds its stand-in."""
    path = TESTS / "chapters" / slug / "standins.py"
    spec = importlib.util.spec_from_file_location(f"standins_{slug.replace('-', '_')}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{slug}: has no tests/chapters/{slug}/standins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(slug: str) -> Iterator[tuple[str, str, str]]:
    """(kind, id, revision) of everything the chapter's full profiles name; kind is ``model`` or ``dataset``."""
    from paperbook.study.paths import chapter
    from paperbook.study.profiles import read_yaml

    for path in sorted((chapter(slug) / "profiles").glob("*full*.yaml")):
        values: dict[str, Any] = read_yaml(path)
        for name, revision in values.items():
            if name.endswith("_revision") and revision:
                kind = "dataset" if name.startswith("dataset") else "model"
                yield kind, values[name.removesuffix("_revision") + "_id"], revision


def write_hub(folder: Path, slugs: list[str]) -> list[str]:
    """Write the stand-ins of `slugs` below ``folder/hub`` as the hub's cache keeps them; the names of the repositories."""
    from rehearsal.standins import StandIns

    standins, written = StandIns(folder / "standins"), []
    for slug in slugs:
        ours = chapter_standins(slug)
        for kind, name, revision in pinned(slug):
            target = folder / "hub" / f"{kind}s--{name.replace('/', '--')}" / "snapshots" / revision
            shutil.copytree(ours.HUB[name](standins), target, dirs_exist_ok=True)
            # whoever reads it can tell that this is not what its name says
            (target / "STAND-IN.txt").write_text(f"a toy in the place of {name}, for rehearsals\n", encoding="utf-8")
            written.append(f"{name} at {revision[:8]}")
    shutil.rmtree(folder / "standins")
    return written


def main(arguments: list[str]) -> int:
    """The command."""
    from paperbook.study.paths import root

    if not arguments:
        print("usage: python tests/rehearsal/hub.py FOLDER [CHAPTER]...", file=sys.stderr)
        return 2
    slugs = arguments[1:] or sorted(path.parent.name for path in (TESTS / "chapters").glob("*/standins.py"))
    folder = Path(arguments[0])
    (folder if folder.is_absolute() else root() / folder).mkdir(parents=True, exist_ok=True)
    for line in write_hub(folder, slugs):
        print(f"stand-in for {line}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
