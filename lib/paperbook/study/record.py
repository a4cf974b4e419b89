"""What a page tells the press while it executes: the claims it judged live and the files it read.

The press sets ``PAPERBOOK_RECORD`` to a file before it starts a kernel; nobody else does, so elsewhere this is silent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paperbook.study.paths import relative


def record(kind: str, **fields: Any) -> None:
    """Append one JSON line to the file named by ``PAPERBOOK_RECORD``; do nothing where it is not set."""
    target = os.environ.get("PAPERBOOK_RECORD")
    if target:
        with open(target, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, **fields}, sort_keys=True) + "\n")


def record_read(path: Path) -> None:
    """Note that the page depends on `path`, present or missing: the stamp then changes with the file."""
    record("read", path=relative(path))
