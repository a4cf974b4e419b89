"""What a page tells whoever executes it: the claims it judged live, the files and the parameters it read.

The press and the rehearsals set ``PAPERBOOK_RECORD`` to a file before they start a kernel; elsewhere this is silent.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from paperbook.study.paths import relative


def recording() -> bool:
    """Whether anybody listens."""
    return bool(os.environ.get("PAPERBOOK_RECORD"))


def record(kind: str, **fields: Any) -> None:
    """Append one JSON line to the file named by ``PAPERBOOK_RECORD``; do nothing where it is not set."""
    target = os.environ.get("PAPERBOOK_RECORD")
    if target:
        with open(target, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"kind": kind, **fields}, sort_keys=True) + "\n")


def record_read(path: Path) -> None:
    """Note that the page depends on `path`, present or missing: the stamp then changes with the file."""
    record("read", path=relative(path))
