"""NumPy arrays and torch tensors through one namespace, and random streams of either kind.

The last axis of an array is the dimension; all leading axes are batch. Names follow the Python array API standard, which
``array_api_compat`` provides for both libraries.
"""

from __future__ import annotations

import sys
from typing import Any

import array_api_compat.numpy as numpy_namespace
import numpy as np
from array_api_compat import array_namespace

Array = Any
"""A NumPy array or a torch tensor of floating-point numbers."""
Stream = Any
"""A ``numpy.random.Generator`` or a ``torch.Generator``; draws live where the generator lives."""


def namespace(*arrays: Array) -> Any:
    """The array module that `arrays` belong to; TypeError if they belong to different ones."""
    if len(arrays) == 1 and type(arrays[0]) is np.ndarray:
        return numpy_namespace  # the common case, on every round: looking it up takes longer than adding small arrays
    return array_namespace(*arrays)


def like(value: Any, reference: Array) -> Array:
    """`value` as an array of the kind, dtype and device of `reference`; float64 where that holds integers (they would cut it)."""
    xp = namespace(reference)
    if xp.__name__.endswith("numpy"):
        return np.asarray(value, dtype=reference.dtype if reference.dtype.kind == "f" else np.float64)
    dtype = reference.dtype if reference.dtype.is_floating_point else xp.float64
    return xp.asarray(value, dtype=dtype, device=reference.device)


def last_axis(name: str, x: Array, dim: int) -> Array:
    """Return `x`; ValueError unless its last axis has length `dim` (a shape is known without asking the device)."""
    if x.ndim == 0 or x.shape[-1] != dim:
        raise ValueError(f"{name}: expected shape (..., {dim}), got {tuple(x.shape)}")
    return x


def numpy_of(x: Array) -> np.ndarray:
    """`x` as a NumPy array on the CPU; its values are not copied where they are one already."""
    if isinstance(x, np.ndarray | np.generic | float | int):
        return np.asarray(x)
    return x.detach().cpu().numpy()


def is_stream(name: str, rng: Any) -> Any:
    """Return `rng`; TypeError unless it is a numpy or a torch generator (global seeds are not taken)."""
    torch = sys.modules.get("torch")
    if isinstance(rng, np.random.Generator) or (torch is not None and isinstance(rng, torch.Generator)):
        return rng
    raise TypeError(f"{name}: expected a numpy.random.Generator or a torch.Generator, got {type(rng).__name__} {rng!r}")


def stream_for(name: str, rng: Any, x: Array) -> Any:
    """Return `rng`; TypeError unless it is a generator of the library and the kind of device that `x` belongs to."""

    def home(thing: Any, is_numpy: bool) -> str:
        return "numpy" if is_numpy else f"torch on {thing.device.type}"

    ours = home(is_stream(name, rng), isinstance(rng, np.random.Generator))
    if ours != (theirs := home(x, isinstance(x, np.ndarray))):
        raise TypeError(f"{name}: expected a generator of {theirs}, where the iterates are, got one of {ours}")
    return rng


def uniform(rng: Stream, *shape: int) -> Array:
    """Uniform numbers in [0, 1) of the given shape, float64."""
    if isinstance(rng, np.random.Generator):
        return rng.random(shape)
    torch = sys.modules["torch"]
    return torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)


def normal(rng: Stream, *shape: int) -> Array:
    """Standard normal numbers of the given shape, float64."""
    if isinstance(rng, np.random.Generator):
        return rng.standard_normal(shape)
    torch = sys.modules["torch"]
    return torch.randn(shape, generator=rng, device=rng.device, dtype=torch.float64)


def integers(rng: Stream, high: int, *shape: int) -> Array:
    """Uniform integers in {0, ..., high - 1} of the given shape."""
    if isinstance(rng, np.random.Generator):
        return rng.integers(high, size=shape)
    return sys.modules["torch"].randint(high, shape, generator=rng, device=rng.device)


def sphere(rng: Stream, *shape: int) -> Array:
    """Uniform points of the unit sphere of the last axis."""
    v = normal(rng, *shape)
    return v / (v * v).sum(-1)[..., None] ** 0.5
