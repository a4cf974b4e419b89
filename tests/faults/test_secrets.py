"""A token in the environment is nowhere in what a run writes or prints, even when the page prints it."""

from __future__ import annotations

import json

from faults.toy import Toy

TOKEN = "hf_" + "Zq3" * 9


def everything(toy: Toy) -> str:
    return "\n".join(
        path.read_text(errors="replace") for path in toy.root.rglob("*") if path.is_file() and ".git" not in path.parts
    )


def test_no_secret_in_logs_notebooks_and_results(toy: Toy) -> None:
    output = toy.run("fault=secret", HF_TOKEN=TOKEN)
    assert TOKEN not in output + everything(toy)
    assert "token is [redacted]" in (toy.folder() / "log.txt").read_text()
    assert "token is [redacted]" in (toy.folder() / "notebook.ipynb").read_text()
    assert toy.result()["metrics"]["note"] == "made with [redacted]"


def test_no_secret_in_a_failure(toy: Toy) -> None:
    output = toy.run("fault=secret-raised", HF_TOKEN=TOKEN, code=1)
    assert TOKEN not in output + everything(toy)
    assert "RuntimeError: no access with [redacted]" in output
    assert toy.manifest()["error"]["message"] == "RuntimeError: no access with [redacted]"


def test_no_secret_through_stock_papermill(toy: Toy) -> None:
    for i, target in enumerate((f"{toy.root}/runs/x.ipynb", "runs/y.ipynb", "./runs/z.ipynb")):
        toy.command("papermill", "chapters/toy/1-train.md", target, "-p", "fault", "secret", "-p", "seed", str(i),
                    "--no-progress-bar",                     HF_TOKEN=TOKEN)  # fmt: skip
    assert TOKEN not in everything(toy)
    assert "token is [redacted]" in json.dumps(json.loads((toy.root / "runs/y.ipynb").read_text()))
