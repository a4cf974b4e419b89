"""What the README promises works as written."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BASH = re.findall(r"```bash\n(.*?)```", README, re.S)
COMMANDS = [line.split("#")[0].strip() for block in BASH for line in block.splitlines() if line.split("#")[0].strip()]


def test_the_example_runs(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("True", "False")) and done.stdout.rstrip().endswith("(100,)")


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    used = {word for line in COMMANDS for word in re.findall(r"\bmake ([a-z]+)", line)}
    assert {"book", "test", "setup"} <= used <= targets


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("papermill")])
def test_papermill_lines_name_files_and_parameters_that_exist(line):
    words = line.split()
    page = ROOT / words[1]
    text = page.read_text(encoding="utf-8")
    for flag, value in itertools.pairwise(words):
        if flag == "-f":
            assert (ROOT / value).is_file()
        if flag == "-p":
            assert re.search(rf"^{value}: ", text, re.M)


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith("paperbook")])
def test_paperbook_lines_name_commands_that_exist(line):
    done = subprocess.run(["paperbook", line.split()[1], "--help"], capture_output=True, text=True, check=True)
    for option in re.findall(r"--[a-z-]+", line):
        assert option in done.stdout


def test_links_and_pictures_are_there():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target
