"""What a run will cost: recorded runs of it, or of its kind, scaled; nothing invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toybook import store_result

from paperbook.runner.forecast import Record, duration, forecast, records
from paperbook.runner.plan import make
from paperbook.study.results import write_json


def record(needs: Any, seconds: float, hardware: str = "on a", **parameters: Any) -> Record:
    return Record(needs(**parameters).model_dump(mode="json"), seconds, hardware)


def test_no_record_is_no_forecast(needs: Any) -> None:
    assert forecast(needs(), []) is None


def test_runs_of_it_are_averaged_whatever_the_seed(needs: Any) -> None:
    known = [record(needs, 10.0, seed=1), record(needs, 20.0, seed=2), record(needs, 999.0, steps=11)]
    found = forecast(needs(seed=7), known)
    assert found is not None and (found.seconds, found.basis) == (15.0, "2 recorded runs of it, on a")
    assert forecast(needs(), known[:1]).basis == "1 recorded run of it, on a"  # type: ignore[union-attr]


def test_hardware_is_not_averaged_over(needs: Any) -> None:
    known = [record(needs, 1000.0, "on a CPU"), record(needs, 10.0, "on a GPU"), record(needs, 12.0, "on a GPU")]
    found = forecast(needs(), known)
    assert found is not None and (found.seconds, found.basis) == (11.0, "2 recorded runs of it, on a GPU")


def test_the_nearest_of_its_kind_is_scaled_by_work(needs: Any) -> None:
    known = [record(needs, 10.0, steps=100), record(needs, 3.0, steps=1), record(needs, 7.0, steps=300, batch_size=8)]
    found = forecast(needs(steps=400), known)
    assert found is not None and found.seconds == pytest.approx(40.0)
    assert found.basis == "4 times the work of a recorded run, on a"


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_twice_the_work_costs_twice(before: int, now: int) -> None:
    from toybook import TrainConfig

    known = [Record(TrainConfig(steps=before, lr=0.2).model_dump(mode="json"), float(before), "on a")]
    found = forecast(TrainConfig(steps=now), known)
    assert found is not None and found.seconds == pytest.approx(now)


def test_as_much_work_with_another_parameter(needs: Any) -> None:
    assert forecast(needs(lr=0.2), [record(needs, 3.0)]).basis == "as much work as a recorded run, on a"  # type: ignore[union-attr]


def test_another_kind_forecasts_nothing(needs: Any) -> None:
    assert forecast(needs(batch_size=8), [record(needs, 10.0, batch_size=16)]) is None


def test_without_a_formula_only_runs_of_it_count(needs: Any) -> None:
    needs.kind = None
    assert forecast(needs(steps=20), [record(needs, 10.0)]) is None
    assert forecast(needs(), [record(needs, 10.0)]).seconds == 10.0  # type: ignore[union-attr]


def test_a_record_of_an_older_version_of_the_page_is_left_out(needs: Any) -> None:
    old = Record({"steps": 10, "gone": 1}, 5.0, "on a")
    assert forecast(needs(steps=20), [old]) is None
    assert forecast(needs(steps=20), [old, record(needs, 10.0)]).seconds == 20.0  # type: ignore[union-attr]


def test_committed_results_and_finished_runs_are_records(root: Path) -> None:
    item = make("toy/1-train", "full").items[0]
    store_result(item.spec, wall_seconds=12.5)
    content = {"runs": [{"provenance": {"parameters": {"steps": 3}, "seed": s, "wall_seconds": 2.0 + s,
                                        "hardware": {"processor": "p", "gpus": ["H200", "H200"]}}} for s in (0, 1)]}  # fmt: skip
    write_json(root / "chapters" / "toy" / "results" / "1-train.reader.json", content)
    write_json(root / "chapters" / "toy" / "results" / "2-more.reader.json", content)
    assert [(r.seconds, r.hardware, r.parameters["seed"]) for r in records("toy", "1-train")] == [
        (2.0, "on H200, H200", 0), (3.0, "on H200, H200", 1), (12.5, "on a processor", 0),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [
    "", "{", "[]", "3", '{"runs": 3}', '{"runs": [{}]}', '{"runs": [{"provenance": []}]}',
    '{"runs": [{"provenance": {"hardware": "x", "parameters": {}, "seed": 0, "wall_seconds": 1}}]}',
    '{"runs": [{"provenance": {"hardware": {}, "parameters": {}, "seed": 0, "wall_seconds": "long"}}]}',
    '{"runs": [{"provenance": {"hardware": {}, "parameters": {}, "seed": 0, "wall_seconds": NaN}}]}',
    '{"runs": [{"provenance": {"hardware": {}, "parameters": {}, "seed": 0, "wall_seconds": -1}}]}',
    '{"runs": [{"provenance": {"hardware": {}, "parameters": [1], "seed": 0, "wall_seconds": 1}}]}',
])  # fmt: skip
def test_files_that_cannot_be_read_are_left_out(root: Path, content: str) -> None:
    committed = root / "chapters" / "toy" / "results" / "1-train.reader.json"
    committed.parent.mkdir()
    committed.write_text(content)
    (item,) = make("toy/1-train", "full").items
    item.spec.folder.mkdir(parents=True)
    (item.spec.folder / "result.json").write_text(content)
    assert records("toy", "1-train") == []
    store_result(make("toy/1-train", "full", "1").items[0].spec)
    assert [r.seconds for r in records("toy", "1-train")] == [8.0]


def test_a_folder_in_the_place_of_a_result_is_left_out(root: Path) -> None:
    (root / "chapters" / "toy" / "results" / "1-train.reader.json").mkdir(parents=True)
    assert records("toy", "1-train") == []


@pytest.mark.parametrize(("seconds", "text"), [
    (-3, "under 1 s"), (0, "under 1 s"), (0.99, "under 1 s"), (1, "1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"),
    (200, "3 min 20 s"), (3599.4, "59 min 59 s"),
    (3599.6, "1 h 0 min"), (7500, "2 h 5 min"), (86399.7, "1 d 0 h"), (273600, "3 d 4 h"),
])  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
