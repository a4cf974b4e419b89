"""The command line: light to start, plain in what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest

from paperbook.runner import doctor


def test_starting_the_command_imports_nothing_heavy() -> None:
    code = "import sys, paperbook.cli; print(*sorted(sys.modules))"
    loaded = set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
    assert not {"torch", "numpy", "pandas", "sphinx", "papermill", "nbformat", "grimp", "pydantic", "yaml"} & loaded


def test_list_and_help(book) -> None:
    text = book.paperbook("list")
    assert "demo-one: Demo one" in text and "demo-one/1-method" in text and "MB" in text
    for command in ("list", "execute", "status", "results", "new", "claims", "data", "doctor"):
        assert command in book.paperbook("--help")


def test_results_joins_finished_seeds(book) -> None:
    assert "no finished run" in book.paperbook("results", "demo-one", code=2)
    for seed in ("0", "1"):
        book.run("papermill", "chapters/demo-one/1-method.md", "x.ipynb", "--no-progress-bar",
                 "-f", "chapters/demo-one/profiles/reader.yaml", "-p", "seed", seed)  # fmt: skip
    text = book.paperbook("results", "demo-one", "--allow-dirty")
    assert "chapters/demo-one/results/1-method.reader.json: 2 seeds" in text


def test_list_marks_the_profiles_of_each_page(here) -> None:
    lines = {line.split()[0]: line.split("  ")[-1] for line in here.paperbook("list").splitlines() if line.startswith("  ")}
    assert lines["demo-one/1-method"].strip() == "reader, full"
    assert "reader" not in lines["demo-one/0-overview"]


@pytest.mark.parametrize(("command", "codes"), [("run", "0 1 2 130"), ("results", "0 2"), ("doctor", "0 1"), ("status", "")])
def test_help_states_the_exit_codes(here, command, codes) -> None:
    text = " ".join(here.paperbook(command, "--help").split())
    assert not codes or "Exit code 0" in text
    assert all(f" {code}:" in text or f"{code}:" in text for code in codes.split())


def test_doctor_names_what_is_missing(here) -> None:
    findings = {finding.what: finding for finding in doctor.examine()}
    assert findings["Python"].good and findings["packages"].good
    assert not findings["MathJax"].good and findings["MathJax"].mend == "make setup" and findings["MathJax"].mark == "MISSING"
    here.paperbook("doctor", code=1)


def test_doctor_compares_versions(here) -> None:
    lock = here.root / "constraints.txt"
    lock.write_text(lock.read_text().replace("papermill==", "papermill==9."))
    found = next(finding for finding in doctor.packages() if finding.what == "versions")
    assert not found.good and "papermill" in found.detail and "pinned 9." in found.detail
