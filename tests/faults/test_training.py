"""What goes wrong inside a run: a loss that is no number, memory that runs out, data that are not there or not right."""

from __future__ import annotations

import pytest
from faults.toy import Toy


def test_a_loss_that_is_no_number(toy: Toy) -> None:
    output = toy.run("fault=nan", seeds="0-1", options=("--workers", "1"), code=1)
    assert "[2/2] toy/1-train full s1" in output and "2 failed" in output  # the next seed had its turn
    assert (
        "loss of model: expected a finite number, got nan at step 6; last good checkpoint: step 5; lower lr (now 0.05)" in output
    )
    assert toy.manifest()["error"]["kind"] == "diverged" and toy.manifest()["status"] == "failed"
    assert toy.steps() == [4, 5]
    toy.no_leftovers()


@pytest.mark.parametrize("fault", ["memory", "torch-memory"])
def test_out_of_memory_names_the_parameter_to_lower(toy: Toy, fault: str) -> None:
    output = toy.run(f"fault={fault}", code=1)
    assert "out of memory (" in output and "lower --set batch_size=4" in output
    assert toy.manifest()["error"]["kind"] == "out_of_memory"
    log = (toy.folder() / "log.txt").read_text()
    assert "Executing Cell" in log and (toy.folder() / "notebook.ipynb").is_file()


def test_missing_data_are_refused_before_any_work(toy: Toy) -> None:
    output = toy.run(f"data={toy.root}/rows.csv", code=2)
    assert f"toy rows: not on this machine; fetch it with: hf download toy/rows --revision {40 * 'a'}" in output
    assert toy.folders() == [] and toy.executions() == []


def test_data_with_other_columns_fail_in_plain_words(toy: Toy) -> None:
    (toy.root / "rows.csv").write_text("x,z\n1,2\n")
    output = toy.run(f"data={toy.root}/rows.csv", code=1)
    assert "ValueError: data: expected the columns x and y, got ['x', 'z']" in output and "log: " in output
    assert toy.manifest()["status"] == "failed" and toy.manifest()["error"]["kind"] == "error"


def test_one_that_fails_does_not_stop_the_others(toy: Toy) -> None:
    output = toy.run("fault=only-1", seeds="0-2", code=1)
    assert "2 finished" in output and "1 failed" in output
    assert [toy.manifest(seed)["status"] for seed in (0, 1, 2)] == ["finished", "failed", "finished"]
    # and it is tried again, alone
    toy.run("fault=only-1", seeds="0-2", code=1)
    assert sorted(toy.executions()) == [0, 1, 1, 2]
