"""papermill reads chapter sources (MyST Markdown) directly, through the ``papermill.io`` entry points of the package.

papermill picks a handler by the prefix of the path as typed, so the entry points are ``chapters/``, ``./chapters/`` and
``/`` (absolute paths); everything that is no ``.md`` is read as in stock papermill. What is written to an absolute path, or below
``runs/``, has its secrets removed.
"""

from __future__ import annotations

import os
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

# papermill warns about every input that is not .ipynb, also where a handler knows the format
warnings.filterwarnings("ignore", message=r"The specified file \(.*\.md\) does not end in one of", category=UserWarning)


class ChapterHandler:
    """papermill's handler of local files, where a ``.md`` file is a MyST notebook.

    It holds papermill's own handler rather than inheriting from it: papermill loads this module while it is being
    imported itself, so nothing here may import papermill before the first use.
    """

    @cached_property
    def _local(self) -> Any:
        from papermill.iorw import LocalHandler

        return LocalHandler()

    def __getattr__(self, name: str) -> Any:
        # listdir, pretty_path, cwd: as papermill does for local files
        return getattr(self._local, name)

    def read(self, path: str) -> str:
        """The notebook at `path` as JSON text; its kernel gets one thread unless OMP_NUM_THREADS and the like are set.

        Raises:
            FileNotFoundError: no such source.
            ValueError: a Markdown file without the header that makes it a notebook, which would run no cell at all.
        """
        if not path.endswith(".md"):
            return str(self._local.read(path))
        # The kernel, started later, inherits this. Small kernels of BLAS, OpenMP and LightGBM threads fight over the
        # cores (a page took twenty times as long); who wants more threads sets the variables himself.
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        import nbformat

        from paperbook.press.toc import read_source

        return str(nbformat.writes(read_source(Path(path))))

    def write(self, buf: str, path: str) -> Any:
        """Write an executed notebook, whole or not at all, secrets removed; never over a chapter's source.

        Raises:
            ValueError: `path` ends in ``.md``.
        """
        if path.endswith(".md"):
            raise ValueError(f"output: expected a path ending in .ipynb, got {path!r} (sources are never written)")
        from paperbook.study.redaction import redact
        from paperbook.study.results import write_atomic

        return write_atomic(Path(path), redact(buf).encode())


chapter_handler = ChapterHandler()
