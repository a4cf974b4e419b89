"""What a CPU cannot show, on one GPU in at most five minutes and without a network: ``python tests/gpu/gpu.py --out gpu.json``.

Agreement of GPU and CPU (double, float32, bfloat16, compiled), resuming to the same bits, the rehearsals of all chapters on CUDA,
and the throughput of each loop as a share of what the chip can do. One JSON; exit code 1 if a check failed. Without a GPU it
writes ``{"skipped": ...}`` and exits with 0. ``--device cpu`` runs every line at toy size; its times mean nothing.

A plain PyTorch image is enough (torch, transformers, numpy, scipy, scikit-learn, pandas, matplotlib). A check that needs more is
skipped and says which package is missing; jaxtyping alone is replaced by a blank, since its names occur in annotations only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 300.0
"""Seconds for everything."""

# dense bfloat16 TFLOP/s and memory GB/s by the makers' data sheets; the first pattern that fits the device's name counts
CHIPS: list[tuple[str, float, float]] = [
    (r"H200", 989.0, 4800.0),
    (r"H100.*(NVL)", 835.0, 3900.0),
    (r"H100.*(PCIe)", 756.0, 2000.0),
    (r"H100", 989.0, 3350.0),
    (r"A100.*80GB", 312.0, 2039.0),
    (r"A100", 312.0, 1555.0),
    (r"L40S", 362.0, 864.0),
    (r"\bL4\b", 121.0, 300.0),
    (r"\bA10\b", 125.0, 600.0),
    (r"RTX 4090", 165.0, 1008.0),
]
REHEARSAL_PACKAGES = ("pytest", "papermill", "jupytext", "nbformat", "ipykernel", "pydantic", "yaml", "jaxtyping", "grimp",
                      "datasets")  # fmt: skip


class Skipped(Exception):
    """A check that cannot run here; the message says what is missing."""


class Failed(Exception):
    """A check whose condition does not hold; the message has the numbers."""


class Bench:
    """Device, sizes and clock that every check shares.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self.torch, self.device, self.cuda = torch, torch.device(device), device == "cuda"
        name = torch.cuda.get_device_name() if self.cuda else platform.processor() or "cpu"
        self.name, (self.peak, self.bandwidth) = name, chip(name) if self.cuda else (None, None)

    def size(self, full: int, toy: int) -> int:
        """A size for a GPU, or the toy one that rehearses this script on a CPU."""
        return full if self.cuda else toy

    def seconds(self, work: Callable[[], Any], repeats: int = 5) -> float:
        """Median wall seconds of `work`, after one call that warms up; the device is waited for."""
        work()
        times = []
        for _ in range(repeats if self.cuda else 1):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    def wait(self) -> None:
        """Wait until the device has done everything it was given."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def rates(self, seconds: float, samples: float, flops: float, moved: float | None = None) -> dict[str, float | None]:
        """Samples/s, TFLOP/s and their share of the peak (MFU); GB/s and their share where the bytes moved are known."""
        tflops = flops / seconds / 1e12
        found = {"seconds": seconds, "samples_per_s": samples / seconds, "tflop_per_s": tflops,
                 "mfu": tflops / self.peak if self.peak else None}  # fmt: skip
        if moved is not None:
            found["gb_per_s"] = moved / seconds / 1e9
            found["share_of_bandwidth"] = found["gb_per_s"] / self.bandwidth if self.bandwidth else None
        return found


def chip(name: str) -> tuple[float | None, float | None]:
    """Dense bfloat16 peak (TFLOP/s) and memory bandwidth (GB/s) of a GPU by its name; None for one that is not in the table."""
    for pattern, peak, bandwidth in CHIPS:
        if re.search(pattern, name):
            return peak, bandwidth
    return None, None


# --- agreement -------------------------------------------------------------------------------------------------------------


def head_problem(bench: Bench) -> tuple[Any, Any, int, int]:
    """Training and validation data of a linear head: Gaussian features, labels from a random linear rule."""
    from paperbook.papers.safe_residual.heads import HeadData

    torch = bench.torch
    n, d, k = bench.size(20_000, 400), bench.size(512, 16), bench.size(100, 5)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=stream) / d**0.5
    y = (x @ torch.randn(d, k, generator=stream) * 3 + torch.randn(n, k, generator=stream)).argmax(1)
    base = 0.1 * torch.randn(n, k, generator=stream)
    cut = n * 4 // 5
    return HeadData(x[:cut], base[:cut], y[:cut]), HeadData(x[cut:], base[cut:], y[cut:]), d, k


def trained(bench: Bench, device: Any, **options: Any) -> Any:
    """One head trained on `device`, the same batches everywhere."""
    from paperbook.papers.safe_residual.heads import ZeroInitHead, train_head

    train, held, d, k = head_problem(bench)
    steps = bench.size(300, 20)
    settings = {"lr": 0.01, "steps": steps, "check_every": steps // 4, "batch_size": 256,
                "generator": bench.torch.Generator().manual_seed(1), "device": device, **options}  # fmt: skip
    return train_head(ZeroInitHead(d, k), train, held, **settings)


def worst(ours: list[float], theirs: list[float]) -> float:
    """Largest relative difference of two paths."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def within(found: dict[str, float], bounds: dict[str, float]) -> dict[str, Any]:
    """`found` with its bounds; fails where one is exceeded or is no number."""
    wrong = [f"{name} = {found[name]:.3g}, at most {bound:.3g}" for name, bound in bounds.items() if not found[name] <= bound]
    if wrong:
        raise Failed("; ".join(wrong))
    return {**found, "bounds": bounds}


def heads_agree(bench: Bench) -> dict[str, Any]:
    """The head's validation path on this device against float32 on the CPU: float32, bfloat16 autocast, compiled."""
    reference = trained(bench, "cpu", autocast=False).val_losses
    if not reference[-1] < 0.9 * reference[0]:
        raise Failed(f"the reference does not learn: log-loss {reference[0]:.3f} -> {reference[-1]:.3f}")
    found = {
        "float32": worst(trained(bench, bench.device, autocast=False).val_losses, reference),
        "bfloat16": worst(trained(bench, bench.device, autocast=True).val_losses, reference),
        "compiled": worst(trained(bench, bench.device, autocast=True, compile=True).val_losses, reference),
    }
    # float32 sums in another order err by 6e-8 times the root of their length, per step; Adam divides by the size of the
    # gradient, which amplifies where that is small: 1e-4 leaves a factor of about 1e3. bfloat16 has 8 bits (4e-3); its errors
    # are of either sign and the loss averages them over rows and classes: five roundings
    return within(found, {"float32": 1e-4, "bfloat16": 2e-2, "compiled": 2e-2})


def crossing_agrees(bench: Bench) -> dict[str, Any]:
    """The simulation of critical radii: the same data fitted here and by numpy, and the same risk from other random numbers."""
    import numpy as np

    from paperbook.papers.safe_residual.piecewise import RIDGE, Draws, fit_batch, piecewise_risks
    from paperbook.papers.safe_residual.synthetic import cosine

    torch, reps, n, cells = bench.torch, bench.size(64, 8), bench.size(20_000, 500), 8
    plain, there = Draws(np.random.default_rng(0)), Draws(np.random.default_rng(0), bench.device)
    X, noise = plain.batch(reps, n, 1)
    Xt, noise_t = (torch.from_numpy(values).to(bench.device) for values in (X, noise))
    ours = fit_batch(Xt, [cosine(Xt), noise_t], cells, 2, RIDGE, there)
    theirs = fit_batch(X, [cosine(X), noise], cells, 2, RIDGE, plain)
    found = {"coefficients": float(np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max())}
    risks = [piecewise_risks(n, cells, 1, cosine, 0.5, 8 * reps, np.random.default_rng(seed), device=device).risk([0.1])
             for seed, device in ((1, None), (2, bench.device))]  # fmt: skip
    gap = abs(risks[0].mean() - risks[1].mean())
    found["risk_in_standard_errors"] = float(gap / math.hypot(*(risk.std() / risk.size**0.5 for risk in risks)))
    # double precision, sums of n/8 terms, a 2 x 2 system of condition below 1e2: 1e-16 * 1e4 * 1e2; four standard errors
    return within(found, {"coefficients": 1e-10, "risk_in_standard_errors": 4.0})


def standins(folder: Path) -> Any:
    """The rehearsals' builder of toy models."""
    from rehearsal.standins import StandIns

    return StandIns(folder)


def backbones_agree(bench: Bench) -> dict[str, Any]:
    """Frozen features and logits of a toy CLIP and a toy language model, here against float32 on the CPU."""
    need("PIL", "tokenizers")
    import numpy as np
    from PIL import Image

    from paperbook.papers.safe_residual.backbones import load_backbone

    torch, rng = bench.torch, np.random.default_rng(0)

    def encode(kind: str, weights: Path, prompt: str, items: list[Any], device: Any, dtype: str) -> Any:
        return load_backbone(kind, weights, classes, prompt, device=device, dtype=getattr(torch, dtype)).encode(items)

    classes = ["apple", "bear", "bus"]
    pictures = [Image.fromarray(rng.integers(0, 256, (40, 32, 3), dtype=np.uint8)) for _ in range(16)]
    texts = [" ".join(rng.choice(classes, 1 + i % 7)) for i in range(16)]
    found, bounds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        models = standins(Path(folder))
        cases = {"clip": (models.clip([*classes, "a photo of a"]), "a photo of a {class}.", pictures),
                 "causal-lm": (models.causal_lm([*classes, "Topic"]), "Topics: {classes}. {text} Topic:", texts)}  # fmt: skip
        for kind, (weights, prompt, items) in cases.items():
            reference = encode(kind, weights, prompt, items, torch.device("cpu"), "float32")
            for dtype, bound in (("float32", 2e-3), ("bfloat16", 6e-2)):
                there = encode(kind, weights, prompt, items, bench.device, dtype)
                for part in ("features", "base_logits"):
                    ours, theirs = getattr(there, part).double(), getattr(reference, part).double()
                    found[f"{kind} {part} {dtype}"] = float((ours - theirs).norm() / theirs.norm())
                    bounds[f"{kind} {part} {dtype}"] = bound
    # relative error of the whole block. float32 products may run in TF32 (10 bits, 1e-3) inside convolutions; bfloat16 (8 bits,
    # 4e-3) rounds about ten times on the way through two layers, errors of either sign: 4e-3 * sqrt(10) = 1.3e-2, times four
    return within(found, bounds)


# --- resuming --------------------------------------------------------------------------------------------------------------


def resumes(bench: Bench) -> dict[str, Any]:
    """A run stopped half way and resumed from its checkpoint ends with the same bits as one that was never stopped."""
    from paperbook.study.checkpoints import Checkpoints

    torch, width, steps = bench.torch, bench.size(512, 16), 20

    def loop(folder: Path, stop: int) -> tuple[int, dict[str, Any]]:
        torch.manual_seed(0)  # dropout draws from the device's own stream, which a checkpoint must carry
        layers = torch.nn.Linear(width, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)
        model = torch.nn.Sequential(*layers).to(bench.device)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, fused=bench.cuda)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        batches = torch.Generator(device=bench.device).manual_seed(1)
        checkpoints = Checkpoints(folder, {"config": "gpu", "seed": "0", "code": "0"})
        parts = {"model": model, "optimiser": optimiser, "schedule": schedule, "batches": batches}
        resumed = checkpoints.resume(**parts)
        first = resumed.step if resumed else 0
        for step in range(first, stop):
            x = torch.randn(64, width, generator=batches, device=bench.device)
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            if step + 1 == steps // 2:
                checkpoints.save(step + 1, **parts)
        checkpoints.release()  # as the end of the process would
        return first, {name: value.cpu().clone() for name, value in model.state_dict().items()}

    with tempfile.TemporaryDirectory() as folder, repeatable(torch):
        _, whole = loop(Path(folder) / "whole", steps)
        loop(Path(folder) / "parts", steps // 2 + 3)  # stopped after its checkpoint: three steps are lost
        first, again = loop(Path(folder) / "parts", steps)
    if first != steps // 2:
        raise Failed(f"resumed at step {first}, the checkpoint was of step {steps // 2}")
    different = [name for name in whole if not torch.equal(whole[name], again[name])]
    if different:
        raise Failed(f"not the same bits after resuming: {', '.join(different)}")
    return {"resumed_at": first, "steps": steps, "tensors": len(whole)}


def head_resumes(bench: Bench) -> dict[str, Any]:
    """The head's own loop, ended by a full disk at its second checkpoint and started again: the same path, bit for bit."""
    from paperbook.study.checkpoints import Checkpoints

    class Full(Checkpoints):
        def save(self, step: int, **content: Any) -> Path:
            if self.steps():
                raise OSError("no space left")
            return super().save(step, **content)

    key = {"config": "gpu", "seed": "0", "code": "0"}
    with tempfile.TemporaryDirectory() as folder, repeatable(bench.torch):
        whole = trained(bench, bench.device).val_losses
        first = Full(Path(folder), key, every_seconds=0)
        try:
            trained(bench, bench.device, checkpoints=first)
        except OSError:
            first.release()
        else:
            raise Failed("the loop saved fewer than two checkpoints")
        second = Checkpoints(Path(folder), key, every_seconds=0)
        (at,) = second.steps()
        again = trained(bench, bench.device, checkpoints=second).val_losses
        second.release()
    if again != whole:
        raise Failed(f"not the same path after resuming at step {at}: {again} instead of {whole}")
    return {"resumed_at": at, "checks": len(whole)}


@contextmanager
def repeatable(torch: Any) -> Iterator[None]:
    """Only algorithms that repeat bit for bit."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


# --- throughput ------------------------------------------------------------------------------------------------------------


def head_throughput(bench: Bench) -> dict[str, Any]:
    """The training loop of the head at the size of CIFAR-100 with CLIP, batches drawn on the device: eager and compiled."""
    from paperbook.papers.safe_residual.heads import HeadData, ZeroInitHead, train_head

    torch, n, d, k = bench.torch, bench.size(50_000, 256), bench.size(512, 16), bench.size(100, 5)
    batch, steps = bench.size(4096, 64), bench.size(200, 4)
    data = HeadData(torch.randn(n, d, device=bench.device), torch.zeros(n, k, device=bench.device),
                    torch.randint(k, (n,), device=bench.device))  # fmt: skip
    found = {}
    for name, compile in (("eager", False), ("compiled", True)):
        def work(compile: bool = compile) -> None:
            train_head(ZeroInitHead(d, k), data, steps=steps, batch_size=batch, device=bench.device, compile=compile,
                       generator=torch.Generator(device=bench.device).manual_seed(0))  # fmt: skip

        seconds = bench.seconds(work, 3)
        # two products of batch x d x k (forward, weights' gradient). Moved: each batch is gathered (read, written) and read by
        # both products; the weights, their gradient and two moments are read and written once a step
        flops, moved = 4.0 * batch * d * k * steps, 4.0 * steps * (4 * batch * (d + k) + 8 * d * k)
        found[name] = bench.rates(seconds, batch * steps, flops, moved)
    return found


def crossing_throughput(bench: Bench) -> dict[str, Any]:
    """Rows simulated and fitted a second in double precision: bound by memory, not by arithmetic."""
    import numpy as np

    from paperbook.papers.safe_residual.piecewise import piecewise_risks
    from paperbook.papers.safe_residual.synthetic import cosine

    n, reps = bench.size(1_000_000, 1000), bench.size(64, 2)
    seconds = bench.seconds(lambda: piecewise_risks(n, 100, 1, cosine, 0.5, reps, np.random.default_rng(0), device=bench.device,
                                                    max_elements=bench.size(2**25, 2**12)), 3)  # fmt: skip
    # at the least: two arrays drawn (written) and read once, the cell numbers written and read, each of 8 bytes a row
    return bench.rates(seconds, float(n * reps), 20.0 * n * reps, 8.0 * 6 * n * reps)


def clip_throughput(bench: Bench) -> dict[str, Any]:
    """Image embeddings of a random CLIP ViT-B/32 (its real size) in bfloat16."""
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    torch, toy = bench.torch, {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = CLIPVisionConfig() if bench.cuda else CLIPVisionConfig(**toy, image_size=64)
    model = CLIPVisionModelWithProjection(config).to(bench.device).eval()
    pixels = torch.randn(bench.size(512, 2), 3, config.image_size, config.image_size, device=bench.device)

    def work() -> None:
        with torch.inference_mode(), torch.autocast(bench.device.type, torch.bfloat16):
            model(pixel_values=pixels)

    return bench.rates(bench.seconds(work), len(pixels), flops_of(bench, work))


def language_throughput(bench: Bench) -> dict[str, Any]:
    """Last states of a random Qwen3 of 0.6 billion parameters in bfloat16: prompts of 128 tokens, 64 at a time."""
    from transformers import Qwen3Config, Qwen3Model

    torch = bench.torch
    sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936}  # fmt: skip
    toy = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
           "head_dim": 16, "vocab_size": 100}  # fmt: skip
    config = Qwen3Config(**(sizes if bench.cuda else toy))
    model = Qwen3Model(config).to(bench.device, torch.bfloat16).eval()
    tokens = torch.randint(config.vocab_size, (bench.size(64, 2), bench.size(128, 8)), device=bench.device)

    def work() -> None:
        with torch.inference_mode():
            model(input_ids=tokens, use_cache=False)

    found = bench.rates(bench.seconds(work), len(tokens), flops_of(bench, work))
    return {**found, "tokens_per_s": tokens.numel() / found["seconds"]}  # type: ignore[operator]


def flops_of(bench: Bench, work: Callable[[], Any]) -> float:
    """Floating-point operations of `work`, counted by torch (a multiplication and an addition are two)."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


# --- rehearsals ------------------------------------------------------------------------------------------------------------


def rehearsals(bench: Bench) -> dict[str, Any]:
    """The rehearsals of all chapters with their devices left at auto, so that they run on CUDA in bfloat16."""
    need(*REHEARSAL_PACKAGES)
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "chapters").glob("*/test_rehearsal.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    if not bench.cuda:  # the CPU has them in the suite
        command.append("--collect-only")
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PAPERBOOK_REHEARSE_ON": bench.device.type}, capture_output=True,
                          text=True, timeout=200, check=False)  # fmt: skip
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-500:]]
    if done.returncode:
        raise Failed(f"{last[0]}\n{done.stdout[-3000:]}")
    return {"files": files, "pytest": last[0]}


# --- the script ------------------------------------------------------------------------------------------------------------

CHECKS: list[tuple[Callable[[Bench], dict[str, Any]], float]] = [
    (heads_agree, 90), (crossing_agrees, 30), (backbones_agree, 40), (resumes, 30), (head_resumes, 30),
    (head_throughput, 60), (crossing_throughput, 30), (clip_throughput, 40), (language_throughput, 60), (rehearsals, 200),
]  # fmt: skip
"""Each check with its limit in seconds; the budget of the whole cuts them further."""


def need(*packages: str) -> None:
    """Skip the check unless all packages are installed."""
    missing = [name for name in packages if not present(name)]
    if missing:
        raise Skipped(f"not installed: {', '.join(missing)}")


def present(package: str) -> bool:
    """Whether a package can be imported; the blank that stands for jaxtyping does not count."""
    if package in sys.modules:
        return not getattr(sys.modules[package], "__blank__", False)
    return importlib.util.find_spec(package) is not None


def blank_jaxtyping() -> bool:
    """Put a blank in place of jaxtyping where it is missing: its names occur in annotations, which nothing evaluates here."""
    if present("jaxtyping"):
        return False

    class Shape:
        def __class_getitem__(cls, item: Any) -> type[Shape]:
            return cls

    def named(name: str) -> type[Shape]:
        if name.startswith("_"):  # whoever looks into modules asks for __file__ and the like
            raise AttributeError(name)
        return Shape

    blank = types.ModuleType("jaxtyping")
    vars(blank).update(__blank__=True, __getattr__=named)
    sys.modules["jaxtyping"] = blank
    return True


class Late(BaseException):
    """A check ran out of time; no `except Exception` on the way swallows it."""


def run_check(check: Callable[[Bench], dict[str, Any]], bench: Bench, limit: float) -> dict[str, Any]:
    """One row of the report: name, status, seconds, and what was found or what went wrong."""
    start = time.perf_counter()
    row: dict[str, Any] = {"check": check.__name__}

    def late(*_: object) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(limit, 0.01))
    try:
        row |= {"status": "passed", "found": check(bench)}
    except Skipped as reason:
        row |= {"status": "skipped", "reason": str(reason)}
    except ModuleNotFoundError as error:
        row |= {"status": "skipped", "reason": f"not installed: {error.name}"}
    except Failed as error:
        row |= {"status": "failed", "reason": str(error)}
    except (Late, subprocess.TimeoutExpired):
        row |= {"status": "failed", "reason": f"took longer than {limit:.0f} s"}
    except Exception as error:
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {**row, "seconds": round(time.perf_counter() - start, 2)}


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and write the report; 0 when none failed, 1 when one did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON to write")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu rehearses this script at toy size")
    parser.add_argument("--only", nargs="*", metavar="CHECK", help="names of checks to run; all when not given")
    given = parser.parse_args(arguments)
    known = {check.__name__ for check, _ in CHECKS}
    if unknown := sorted(set(given.only or ()) - known):
        parser.error(f"--only: no check {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    start = time.perf_counter()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    if given.device == "cuda" and (reason := no_gpu()):
        print(f"skipped: {reason}")
        given.out.write_text(json.dumps({"skipped": reason}) + "\n", encoding="utf-8")
        return 0
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # products repeat bit for bit; read when CUDA starts
    sys.path[:0] = [str(ROOT / "lib"), str(ROOT / "tests")]
    blank = blank_jaxtyping()
    bench = Bench(given.device)
    rows = []
    for check, limit in CHECKS:
        if given.only is not None and check.__name__ not in given.only:
            continue
        left = BUDGET - (time.perf_counter() - start)
        rows.append(run_check(check, bench, min(limit, left)))
        print(f"{rows[-1]['status']:8} {rows[-1]['seconds']:7.1f} s  {check.__name__}  {rows[-1].get('reason', '')}", flush=True)
    report = {
        "device": bench.name, "toy": not bench.cuda, "peak_bf16_tflop_per_s": bench.peak, "peak_gb_per_s": bench.bandwidth,
        "torch": bench.torch.__version__, "cuda": bench.torch.version.cuda, "python": platform.python_version(),
        "jaxtyping": "missing: a blank stood for it" if blank else "installed",
        "seconds": round(time.perf_counter() - start, 1), "checks": rows,
    }  # fmt: skip
    given.out.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return int(any(row["status"] == "failed" for row in rows))


def no_gpu() -> str:
    """Why there is no GPU to use; empty when there is one."""
    if not present("torch"):
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


if __name__ == "__main__":
    raise SystemExit(main())
