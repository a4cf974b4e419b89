"""A small repository with one page that trains for as long as it is told to, and goes wrong in the way it is told to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
PAGE = '''
# A page that trains

```{code-cell} ipython3
:tags: [parameters]

profile: str = "smoke"
seed: int = 0
steps: int = 24           # gradient steps
pause: float = 0.0        # seconds a step
lr: float = 0.05          # step size
batch_size: int = 8       # rows a step
data: str = ""            # file with the columns x, y; empty for generated rows
fault: str = ""           # what goes wrong: nan, memory, torch, die, raise, secret, late, only-<seed>
framework: str = "numpy"  # or torch
```

```{code-cell} ipython3
import os
from pathlib import Path
from typing import ClassVar

from paperbook.study.params import Config, configure
from paperbook.study.requirements import Asset


class ToyConfig(Config):
    memory_parameters: ClassVar[tuple[str, ...]] = ("batch_size",)
    steps: int
    pause: float
    lr: float
    batch_size: int
    data: str
    fault: str
    framework: str

    def assets(self):
        here = not self.data or Path(self.data).is_file()
        return [] if here else [Asset("toy rows", False, f"hf download toy/rows --revision {40 * 'a'}")]


cfg = configure(ToyConfig)
```

```{code-cell} ipython3
import subprocess
import time

import numpy as np

from paperbook.study.checkpoints import check_finite
from paperbook.study.results import Run
from paperbook.study.seeds import rng

run = Run("toy", "1-train", cfg)
with open(os.environ.get("TOY_COUNT", os.devnull), "a") as count:
    count.write(f"{cfg.seed}\\n")
if os.environ.get("TOY_CHILD"):  # a process of the page's own, such as a loader of data
    subprocess.Popen(["sleep", "600"], start_new_session=True)
kept = run.checkpoints("model")
batches = rng(cfg.seed, "batches")
if cfg.data:
    import pandas as pd

    table = pd.read_csv(cfg.data)
    missing = {"x", "y"} - set(table.columns)
    if missing:
        raise ValueError(f"data: expected the columns x and y, got {sorted(table.columns)}")
if cfg.fault == "memory":
    np.empty((cfg.batch_size, 10**15))
if cfg.fault == "torch-memory":
    import torch

    torch.empty(10**15)
if cfg.fault in ("raise", f"only-{cfg.seed}"):
    raise RuntimeError("the page's own failure")
if cfg.fault == "secret":
    print("token is", os.environ["HF_TOKEN"])
if cfg.fault == "secret-raised":
    raise RuntimeError("no access with " + os.environ["HF_TOKEN"])
```

```{code-cell} ipython3
def spoilt(loss, step):
    """The loss, or what the fault makes of it."""
    with open(os.environ.get("TOY_STEPS", os.devnull), "a") as trained:
        trained.write(f"{step}\\n")
    if cfg.fault == "die" and step == 5 and not os.path.exists(os.environ["TOY_DIED"]):
        open(os.environ["TOY_DIED"], "w").close()
        os.kill(os.getpid(), 9)
    return float("nan") if cfg.fault == "nan" and step == 6 else loss


def train_numpy():
    w, velocity, losses, step = np.zeros(3), np.zeros(3), [], 0
    resumed = kept.resume(batches=batches)
    if resumed:
        step, (w, velocity, losses) = resumed.step, (resumed.values[k] for k in ("w", "velocity", "losses"))
    while step < cfg.steps:
        step += 1
        x = batches.standard_normal((cfg.batch_size, 3)) + 0.1 * np.random.rand()
        error = x @ (w - [1.0, 2.0, 3.0])
        velocity = 0.9 * velocity - cfg.lr * 2 * x.T @ error / cfg.batch_size
        w = w + velocity
        losses.append(float((error**2).mean()))
        time.sleep(cfg.pause)
        loss = spoilt(losses[-1], step)
        check_finite(loss, step, kept, f"lower lr (now {cfg.lr})")
        run.progress(step, cfg.steps)
        if kept.due():
            kept.save(step, values={"w": w, "velocity": velocity, "losses": losses}, batches=batches)
    return losses, w.tolist()
```

```{code-cell} ipython3
def train_torch():
    import torch

    torch.manual_seed(cfg.seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimiser = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=cfg.lr, total_steps=cfg.steps)
    parts = {"model": model, "optimiser": optimiser, "scheduler": scheduler, "batches": batches}
    losses, step = [], 0
    resumed = kept.resume(**parts)
    if resumed:
        step, losses = resumed.step, resumed.values["losses"]
    while step < cfg.steps:
        step += 1
        x = torch.from_numpy(batches.standard_normal((cfg.batch_size, 3))).float()
        optimiser.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True) + 0.01 * torch.randn(len(x), 1))
        loss.backward()
        optimiser.step()
        scheduler.step()
        losses.append(float(loss))
        time.sleep(cfg.pause)
        spoilt(losses[-1], step)
        run.progress(step, cfg.steps)
        if kept.due():
            kept.save(step, values={"losses": losses}, **parts)
    return losses, torch.cat([p.flatten() for p in model.parameters()]).tolist()


losses, weights = train_torch() if cfg.framework == "torch" else train_numpy()
metrics = {"losses": losses, "weights": weights, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", "unset")}
if cfg.fault == "secret":
    metrics["note"] = "made with " + os.environ["HF_TOKEN"]
run.finish(metrics)
```

```{code-cell} ipython3
if cfg.fault == "late":
    raise RuntimeError("a figure after the result")
print("done")
```
'''


@dataclass
class Toy:
    """The repository, and the commands a user would type in it."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> Path:
        return Path(self.env["PAPERBOOK_RUNS"]) if "PAPERBOOK_RUNS" in self.env else self.root / "runs"

    def environment(self, **more: str) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("PAPERBOOK_", "RAY_", "HF_TOKEN"))}
        scripts = str(Path(sys.executable).parent)
        return mine | {"PAPERBOOK_ROOT": str(self.root), "PAPERBOOK_CHECKPOINT_SECONDS": "0",
                       "TOY_COUNT": str(self.root / "count"), "TOY_DIED": str(self.root / "died"),
                       "TOY_STEPS": str(self.root / "steps"),
                       "PATH": scripts + os.pathsep + mine["PATH"],
                       "CUDA_VISIBLE_DEVICES": ""} | self.env | more  # fmt: skip

    def start(self, *changes: str, seeds: str = "0", options: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        """Start `paperbook run` of the toy page at its full profile."""
        command = [sys.executable, "-m", "paperbook.cli", "run", "toy/1-train", "--seeds", seeds, *options]
        command += [word for change in changes for word in ("--set", change)]
        return subprocess.Popen(command, cwd=self.root, env=self.environment(**env), text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)  # fmt: skip

    def run(self, *changes: str, code: int | None = 0, **options: Any) -> str:
        """Run it to its end; its output. `code` is the exit code it must have."""
        return finish(self.start(*changes, **options), code)

    def command(self, *words: str, code: int | None = 0, **env: str) -> str:
        """Any command in the repository; both streams of its output."""
        done = subprocess.run(
            words, cwd=self.root, env=self.environment(**env), text=True, capture_output=True, timeout=180, check=False
        )
        assert code is None or done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def paperbook(self, *words: str, code: int | None = 0, **env: str) -> str:
        return self.command(sys.executable, "-m", "paperbook.cli", *words, code=code, **env)

    def folders(self) -> list[Path]:
        """Folders of the runs there are, by name."""
        return sorted(path for path in (self.runs / "toy" / "1-train").glob("*-s*") if path.is_dir())

    def folder(self, seed: int = 0) -> Path:
        (found,) = [path for path in self.folders() if path.name.endswith(f"-s{seed}")]
        return found

    def manifest(self, seed: int = 0) -> dict[str, Any]:
        return json.loads((self.folder(seed) / "manifest.json").read_text())

    def result(self, seed: int = 0) -> dict[str, Any]:
        return json.loads((self.folder(seed) / "result.json").read_text())

    def steps(self, seed: int = 0) -> list[int]:
        """Steps of the checkpoints on the disk."""
        with contextlib.suppress(ValueError):
            return sorted(
                int(path.stem.removeprefix("step-")) for path in self.folder(seed).glob("checkpoints/model/step-*.safetensors")
            )
        return []

    def wait_for_step(self, step: int, seed: int = 0) -> None:
        until(lambda: (self.steps(seed) or [0])[-1] >= step)

    def kill(self, process: subprocess.Popen[str], step: int, who: str = "kernel") -> str:
        """kill -9 of the runner `process`, or of the only worker or kernel it has, after a step; the output of the runner."""
        until(lambda: self.kernels() and self.workers())
        (kernel,), (worker,) = self.kernels(), self.workers()
        victim = {"kernel": kernel.pid, "worker": worker.pid, "runner": process.pid}[who]
        self.wait_for_step(step)
        os.kill(victim, signal.SIGKILL)
        return finish(process, -signal.SIGKILL if who == "runner" else 1)

    def trained(self) -> list[int]:
        """Steps that were trained by whatever attempt, in order."""
        return [int(line) for line in (self.root / "steps").read_text().split()]

    def executions(self) -> list[int]:
        """Seeds of the kernels that were started, in order."""
        path = self.root / "count"
        return [int(line) for line in path.read_text().split()] if path.is_file() else []

    def no_leftovers(self) -> None:
        """Nothing half written, nobody still running."""
        files = [path.name for path in self.runs.rglob("*")]
        assert not [name for name in files if name.endswith(".tmp") or (name.startswith(".") and name != ".lock")]
        self.nobody()

    def nobody(self) -> None:
        """Whoever was started for a run is gone, or goes within seconds."""
        until(lambda: not self.processes(), 20.0)

    def processes(self) -> list[psutil.Process]:
        """Workers, kernels and what they started, of this repository, that are alive."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                env = process.environ()
                if env.get("PAPERBOOK_ROOT") == str(self.root) and "PAPERBOOK_PROGRESS" in env \
                        and process.status() != psutil.STATUS_ZOMBIE:  # fmt: skip
                    found.append(process)
        return found

    def kernels(self) -> list[psutil.Process]:
        return self._with("ipykernel")

    def workers(self) -> list[psutil.Process]:
        return self._with("paperbook.runner.worker")

    def _with(self, word: str) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found


def finish(process: subprocess.Popen[str], code: int | None = 0, seconds: float = 180) -> str:
    """Wait for a command's end; its output."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
    assert code is None or process.returncode == code, f"exit {process.returncode}\n{output}"
    return output


def until(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    """Wait for a condition, for as long as a loaded machine may take."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def make(folder: Path) -> Toy:
    """The repository, under `folder`."""
    root = folder / "repo"
    chapter = root / "chapters" / "toy"
    (chapter / "profiles").mkdir(parents=True)
    (root / "runs").mkdir()
    (root / "pyproject.toml").write_text("")
    (root / "constraints.txt").write_text("numpy==2\n")
    (root / ".gitignore").write_text("runs/\ncount\nsteps\ndied\n*.csv\n")
    (chapter / "index.yaml").write_text("title: Toy\nmain_page: 1-train\n")
    (chapter / "1-train.md").write_text(HEADER + PAGE)
    (chapter / "profiles" / "full.yaml").write_text("profile: full\nsteps: 24\nbatch_size: 8\n")
    git = ["git", "-c", "user.name=toy", "-c", "user.email=toy@toy", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "toy"]):
        subprocess.run([*git, *words], cwd=root, check=True)
    return Toy(root)
