"""Device and number format of a run: asked for by name, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def pick_device(name: str = "auto") -> torch.device:
    """``"auto"`` (CUDA if there is one, else the CPU), ``"cpu"``, ``"cuda"`` or ``"cuda:<i>"`` as a torch device.

    Raises:
        ValueError: when the name is unknown or names a device this machine does not have.
    """
    import torch

    have = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if have else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:<i>, got {name!r}") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:<i>, got {name!r}")
    if device.type == "cuda" and (device.index or 0) >= have:
        raise ValueError(f"device: {name!r} was asked for, but torch sees {have} CUDA devices here; use device=cpu")
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """``"auto"`` (bfloat16 where the CUDA device supports it, else float32), ``"float32"``, ``"bfloat16"``, ``"float16"``.

    Raises:
        ValueError: when the name is unknown.
    """
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    if name not in known:
        raise ValueError(f"dtype: expected auto, {', '.join(known)}, got {name!r}")
    return known[name]
