"""Executing: what is written, what a failure leaves behind, what a kill leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import nbformat
import psutil
import pytest

from paperbook.press import execute


def _append_cell(book, page: str, code: str) -> None:
    with book.source(page).open("a") as stream:
        stream.write(f"\n```{{code-cell}} ipython3\n{code}\n```\n")


def test_a_second_run_writes_the_same_bytes(book) -> None:
    before = {path: path.read_bytes() for path in (book.page("1-method"), book.root / "book/pages/costs.json")}
    assert "all pages are fresh" in book.paperbook("execute")
    assert "unchanged" in book.paperbook("execute", "demo-one/1-method", "--force")
    assert {path: path.read_bytes() for path in before} == before


def test_the_page_carries_ids_claims_and_nothing_volatile(book) -> None:
    nb = nbformat.read(book.page("1-method"), as_version=4)
    nbformat.validate(nb)
    assert [cell.id for cell in nb.cells] == [f"demo-one-1-method-{i}" for i in range(len(nb.cells))]
    assert set(nb.metadata) == {"kernelspec", "language_info", "paperbook"} and "version" not in nb.metadata.language_info
    assert not any({"execution", "papermill"} & set(cell.metadata) for cell in nb.cells)
    (claim,) = nb.metadata.paperbook.claims
    assert (claim.id, claim.verdict, claim.slug) == ("mean-is-stationary", "holds", "demo-one")
    assert set(nb.metadata.paperbook.stamp.files) == {"chapters/demo-one/claims.yaml"}
    assert str(book.root) not in book.page("1-method").read_text()
    costs = json.loads((book.root / "book/pages/costs.json").read_text())
    assert set(costs) == {"demo-one/0-overview", "demo-one/1-method"} and costs["demo-one/1-method"]["peak_mb"] > 30


def test_a_failing_page_keeps_its_earlier_version_and_others_go_on(book) -> None:
    before = book.page("1-method").read_bytes()
    _append_cell(book, "1-method", "first = 1\nraise RuntimeError('on purpose')")
    book.edit(book.source("0-overview"), "One paragraph", "Two paragraphs")
    text = book.paperbook("execute", code=1)
    assert book.page("1-method").read_bytes() == before
    assert "Two paragraphs" in book.page("0-overview").read_text()
    position = len(json.loads(before)["cells"])
    assert f"demo-one/1-method: cell {position} failed: RuntimeError: on purpose" in text
    assert "| first = 1" in text and "Traceback" in text and "1 of 2 pages failed" in text


def test_a_path_of_this_machine_is_refused(book) -> None:
    before = book.page("1-method").read_bytes()
    _append_cell(book, "1-method", "from paperbook.study.paths import root\nprint(root() / 'chapters')")
    text = book.paperbook("execute", code=1)
    assert book.page("1-method").read_bytes() == before
    assert "names a path of this machine" in text and f"cell {len(json.loads(before)['cells'])}" in text


def test_a_cell_that_runs_too_long_is_stopped(book) -> None:
    _append_cell(book, "1-method", "import time\ntime.sleep(60)")
    assert "cell ran longer than 2 s" in book.paperbook("execute", "--timeout", "2", code=1)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP])
def test_a_kill_midway_leaves_every_page_whole_and_no_process_behind(book, tmp_path, kind: signal.Signals) -> None:
    _append_cell(book, "1-method", "import time\ntime.sleep(60)")
    folder = book.page("1-method").parent
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    command = [sys.executable, "-m", "paperbook.cli", "execute"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = book.env() | {"TMPDIR": str(scratch)}
    process = subprocess.Popen(command, cwd=book.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watched = psutil.Process(process.pid)
    _until(lambda: any("ipykernel" in " ".join(child.cmdline()) for child in watched.children(recursive=True)), 30)
    children = watched.children(recursive=True)
    os.kill(process.pid, kind)
    process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if kind == signal.SIGKILL else 130)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    _, alive = psutil.wait_procs(children, timeout=20)  # a kernel notices within a second or two that its parent is gone
    for process_left in alive:
        process_left.kill()
    assert not alive
    if kind == signal.SIGKILL:  # nobody could clean up, so the next call does
        assert _scratch_folders(scratch)
        command = [sys.executable, "-m", "paperbook.cli", "execute", "demo-one/0-overview"]
        subprocess.run(command, cwd=book.root, env=environment, check=True, capture_output=True, timeout=60)
    assert not _scratch_folders(scratch)


def _scratch_folders(scratch) -> list[str]:
    return [path.name for path in scratch.glob("paperbook-execute-*")]


def test_nohup_is_respected(book) -> None:
    _append_cell(book, "1-method", "import time\ntime.sleep(3)")
    before = book.page("1-method").read_bytes()
    command = ["nohup", sys.executable, "-m", "paperbook.cli", "execute", "demo-one/1-method"]
    process = subprocess.Popen(command, cwd=book.root, env=book.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watched = psutil.Process(process.pid)
    _until(lambda: any("ipykernel" in " ".join(child.cmdline()) for child in watched.children(recursive=True)), 30)
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0 and book.page("1-method").read_bytes() != before


def test_only_folders_of_dead_processes_are_removed(here, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    hour_ago = time.time() - 3600
    for name, pid, old in (("dead", str(dead.pid), False), ("alive", str(os.getpid()), True), ("young", None, False),
                           ("old", None, True), ("odd", "x", True)):  # fmt: skip
        folder = tmp_path / f"paperbook-execute-{name}"
        folder.mkdir()
        (folder / "page.ipynb").write_text("{}")
        if pid is not None:
            (folder / "pid").write_text(pid)
        if old:
            os.utime(folder, (hour_ago, hour_ago))
    (tmp_path / "paperbook-execute-file").write_text("no folder")
    (tmp_path / "else").mkdir()
    execute._drop_leftovers()
    left = {path.name.removeprefix("paperbook-execute-") for path in tmp_path.iterdir()}
    assert {"alive", "young", "file", "else"} <= left and not {"dead", "old", "odd"} & left


def _until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except psutil.Error:
            pass
        time.sleep(0.1)
    raise AssertionError("the kernel did not start")


def test_costs_move_only_when_they_move_far(here) -> None:
    report = {"seconds": 10.0, "cpu_seconds": 10.0, "peak_mb": 100.0}
    execute._remember_cost("demo-one/1-method", report, unchanged=False)
    for seconds, unchanged, expected in ((14.0, True, 10.0), (12.0, False, 12.0), (30.0, True, 30.0)):
        execute._remember_cost("demo-one/1-method", report | {"cpu_seconds": seconds}, unchanged=unchanged)
        assert execute.costs()["demo-one/1-method"]["cpu_seconds"] == expected


@pytest.mark.parametrize(("argument", "value"), [("jobs", 0), ("timeout", 0)])
def test_refuses_numbers_below_one(here, argument: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{argument}: expected a number of at least 1, got 0"):
        execute.execute(**{argument: value})


def test_the_kernel_environment_is_one_thread_and_offline() -> None:
    env = execute.environment()
    assert {env[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR")} == {"1"}
    assert env["PYTHONHASHSEED"] == "0" and env["HF_HUB_OFFLINE"] == "1" and "MPLBACKEND" not in env
