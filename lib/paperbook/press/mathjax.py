"""Vendors MathJax 3 into ``vendor/mathjax`` (git-ignored): the book's equations are typeset when it is built, without a network.

The files come out of a wheel with a pinned hash. Kept is what `press.site.maths` runs, TeX in and HTML out, and the fonts:
2.0 MB of 35. Pages get none of the scripts, and of the fonts the glyphs they use.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from paperbook.data.wheels import WheelError, fetch
from paperbook.study.paths import root

_INSIDE = "mathjax/static/mathjax/"
SCRIPTS = ("startup.js", "core.js", "adaptors/liteDOM.js", "input/tex-full.js", "output/chtml.js", "output/chtml/fonts/tex.js")
FONTS = "output/chtml/fonts/woff-v2"
_KEPT = (*(f"es5/{name}" for name in SCRIPTS), f"es5/{FONTS}/")


def vendor(target: Path) -> int:
    """Write the kept files below `target` and return how many there are; a half-written folder is never left behind.

    Raises:
        WheelError: when the wheel cannot be fetched or its hash is not the pinned one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        staged, count = Path(folder) / "mathjax", 0
        with zipfile.ZipFile(fetch("django-static-mathjax")) as wheel:
            for name in wheel.namelist():
                inside = name.removeprefix(_INSIDE)
                if inside.startswith(_KEPT) or inside == "LICENSE":
                    path = staged / inside.removeprefix("es5/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(wheel.read(name))
                    count += 1
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
    return count


if __name__ == "__main__":
    try:
        vendor(root() / "vendor" / "mathjax")
    except WheelError as error:
        sys.exit(f"MathJax: {error}")
