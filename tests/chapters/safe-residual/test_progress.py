"""What a long simulation tells of itself."""

from __future__ import annotations

import numpy as np

from paperbook.papers.safe_residual.crossing import crossing_study


def test_a_crossing_study_tells_rows_after_each_size() -> None:
    told: list[tuple[int, int, str]] = []

    def run(**options: object) -> tuple[float, ...]:
        study = crossing_study([64, 128, 512], 1.0, 1, 0.5, 20, np.random.default_rng(0), draws=10, **options)
        return (study.slope.mean, study.slope.low, *(r.mean for r in study.radius))

    silent = run()
    assert run(progress=lambda *now: told.append(now)) == silent, "and changes no number"
    assert told == [(done, 352, "crossings, class resolution, smoothness 1, d=1") for done in (32, 96, 352)]
