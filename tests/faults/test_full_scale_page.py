"""Every command of the page "Running at full scale", in its order, with toys in the place of weights, data, GPUs and Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "book" / "full-scale.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```", PAGE, re.S | re.M)
SMALLER = {"n_grid": "[20, 60]", "epochs": "5", "shard_size": "60", "head_batch_size": "32", "batch_size": "32", "max_test": "50"}
SHIMS = {
    "make": 'test "$1" = setup',
    "pip": 'test "$*" = "install -c constraints.txt -e .[full]"',
    # what it names must be what the profiles pin, or the stand-in is not found
    "hf": 'case "$*" in *dataset*) kind=datasets;; *) kind=models;; esac; test "$1" = download -a "$3" = --revision\n'
          'place="hub/$kind--$(echo "$2" | sed s,/,--,)/snapshots"\n'
          'mkdir -p "$HF_HOME/$place"; cp -r "$TOYS/$place/$4" "$HF_HOME/$place/"',
    "nvidia-smi": 'for i in 0 1 2 3 4 5 6 7; do echo "$i, GPU-$i, A GPU, 81920"; done',
    # one array task after another, and the end of a job ends all it started, as Slurm does
    "sbatch": 'export SLURM_JOB_NUM_NODES=$(sed -n "s/^#SBATCH --nodes=//p" "$1")\n'
              'array=$(sed -n "s/^#SBATCH --array=0-//p" "$1")\n'
              'for task in $(seq 0 "${array:-0}"); do SLURM_ARRAY_TASK_ID=$task setsid --wait bash "$1"; done; exec ray stop',
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
}  # fmt: skip


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """A checkout with the chapter, its full profile made small, on a "server" with eight GPUs and Slurm."""
    root, shims, toys = tmp_path / "book", tmp_path / "shims", tmp_path / "toys"
    shims.mkdir()
    skip = shutil.ignore_patterns("results", "__pycache__")
    shutil.copytree(REPOSITORY / "chapters" / "safe-residual", root / "chapters" / "safe-residual", ignore=skip)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, root / name)
    (root / "tests" / "chapters").mkdir(parents=True)
    for name in ("rehearsal", "chapters/safe-residual"):
        shutil.copytree(REPOSITORY / "tests" / name, root / "tests" / name, ignore=skip)
    (root / "runs").mkdir()
    (root / ".gitignore").write_text("runs/\n.cache/\n.venv\n__pycache__/\n")
    profile = root / "chapters" / "safe-residual" / "profiles" / "full.yaml"
    text = profile.read_text(encoding="utf-8")
    for key, value in SMALLER.items():
        text, count = re.subn(rf"^{key}: .*$", f"{key}: {value}", text, flags=re.M)
        assert count == 1, key
    profile.write_text(text, encoding="utf-8")
    # a claim reads the accuracy at the paper's number of labels, which the small profile does not have
    for name in ("claims.yaml", "6-classifiers.md"):
        path = root / "chapters" / "safe-residual" / name
        path.write_text(path.read_text(encoding="utf-8").replace("safe_2000", "safe_60"), encoding="utf-8")
    for name, body in SHIMS.items():
        (shims / name).write_text(f"#!/bin/bash\nset -eu\n{body}\n")
        (shims / name).chmod(0o755)
    # `ray stop` ends every Ray of a machine: here it may end those of this test only
    mine = f"{sys.executable} {Path(__file__).resolve()} {root}"
    (shims / "ray").write_text(f'#!/bin/bash\nif [ "$1" = stop ]; then exec {mine}; fi\nextra=""\n'
                               'if [ "$1" = start ]; then extra="--include-dashboard=false --disable-usage-stats"; fi\n'
                               f'exec {Path(sys.executable).parent}/ray "$@" $extra\n')  # fmt: skip
    (shims / "ray").chmod(0o755)
    (root / ".venv").symlink_to(Path(sys.executable).parents[1])
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=root, check=True)
    hub = [sys.executable, "tests/rehearsal/hub.py", str(toys), "safe-residual"]
    subprocess.run(hub, cwd=root, env=_env(tmp_path), check=True)
    yield root
    end_rays_of(root)


def _env(folder: Path) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PAPERBOOK_", "RAY_", "HF_", "CUDA_"))}
    here = {"PAPERBOOK_ROOT": "book", "HF_HOME": "hub-of-the-server", "TOYS": "toys", "SHIMS": "shims"}
    env["RAY_AUTH_MODE"] = "disabled"  # whatever this user's own clusters do
    return env | {name: str(folder / place) for name, place in here.items()} | {"PATH": f"{folder}/shims:{env['PATH']}"}


def end_rays_of(root: Path) -> None:
    """End the Ray processes that were started from `root`, and no others."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            ours = process.environ().get("PAPERBOOK_ROOT") == str(root) and process.name() not in ("bash", "sh")
            if ours and process.pid != os.getpid() and any(word in line for word in ("ray::", "/ray/", "raylet", "ray start")):
                found.append(process)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=10)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_every_command_of_the_page(server: Path) -> None:
    # verbatim, but for two ports that may be taken on this machine and the place of the shims behind `activate`
    script = "set -eo pipefail\n" + "\n".join(f"echo '== block {i}'\n{block}" for i, block in enumerate(BLOCKS))
    for port in ("6379", "6380"):
        assert port in script
        script = script.replace(port, free_port())
    script = script.replace("source .venv/bin/activate", 'source .venv/bin/activate; export PATH="$SHIMS:$PATH"')
    log = server.parent / "said.txt"  # not a pipe: whoever is left behind would hold it open
    with log.open("w") as stream:
        options = {"stdin": subprocess.DEVNULL, "stdout": stream, "stderr": subprocess.STDOUT, "timeout": 900, "check": False}
        done = subprocess.run(["bash", "-c", script], cwd=server, env=_env(server.parent), **options)
    output = log.read_text()
    assert done.returncode == 0, output
    said = dict(re.findall(r"== block (\d+)\n(.*?)(?=== block|\Z)", output, re.S))
    assert len(said) == len(BLOCKS) >= 12

    def block(text: str) -> str:
        """What the block that holds `text` printed."""
        (number,) = [str(i) for i, content in enumerate(BLOCKS) if text in content]
        return said[number]

    assert block("--dry-run").count("full s") == 5 and "not on this machine" not in output
    rehearsed = block("tests/rehearsal/hub.py")
    assert "stand-in for openai/clip-vit-base-patch32" in rehearsed and re.search(r"\d finished", rehearsed)
    assert "resume: from its checkpoint at step" in rehearsed
    assert "all runs are finished" in block("nohup") and '"status": "finished"' in block("nohup")
    assert "full.json: 5 seeds" in block("paperbook results")
    assert "3 finished" in block("--seeds 0-7 --gpus-per-run 1")
    assert "1 finished" in block("processes=8") and "9 skipped, 1 finished" in block("ray stop")
    assert block("cifar100.sbatch").count("all runs are finished") == 5
    assert "1 finished" in block("ray.sbatch")

    folder = server / "runs" / "safe-residual" / "6-classifiers"
    runs = sorted(folder.glob("full-*-s*"), key=lambda path: int(path.name.split("-s")[1]))
    assert [int(path.name.split("-s")[1]) for path in runs] == list(range(12))  # one folder a seed, whatever started it
    results = [json.loads((path / "result.json").read_text()) for path in runs]
    assert len({json.dumps(result["metrics"]["accuracy"]["f0"]) for result in results}) == 1
    assert all(result["metrics"]["backbone_commit"].startswith("stand-in-") for result in results)
    joined = json.loads((server / "chapters/safe-residual/results/6-classifiers.full.json").read_text())
    assert [run["provenance"]["seed"] for run in joined["runs"]] == [0, 1, 2, 3, 4]


if __name__ == "__main__":
    end_rays_of(Path(sys.argv[1]))
