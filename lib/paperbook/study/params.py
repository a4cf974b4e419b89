"""Strict typed parameters of a page: unknown, mistyped and out-of-range values are refused before any work.

papermill checks neither names nor types: a misspelt ``-p`` is injected and silently ignored. :func:`configure`, called
in the cell after the parameters cell, looks at what stands in the notebook's namespace and refuses what is no field.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import types
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paperbook.study.record import record, recording
from paperbook.study.requirements import Asset, Needs, Work

C = TypeVar("C", bound="Config")

# Names IPython itself keeps in the user's namespace.
_IPYTHON = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


class ParameterError(ValueError):
    """A parameter is unknown, of the wrong type or out of range; the message names it and what was expected."""


class Config(BaseModel):
    """Base of every page's parameters: strict types, no unknown field, frozen.

    A page's own class may say what a run needs (:meth:`assets`, :meth:`needs`), how much work it is (:meth:`work`) and which
    parameters to lower when memory runs out; the runner asks before it starts anything.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
    memory_parameters: ClassVar[tuple[str, ...]] = ()
    speed_parameters: ClassVar[tuple[str, ...]] = ()  # results do not depend on them (tested), so they are no part of the hash

    profile: Literal["smoke", "reader", "full"] = Field("smoke", description="scale of the run")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of every random stream of the run")

    def assets(self) -> list[Asset]:
        """Data and weights the run reads; looks at the disk only, never at the network."""
        return []

    def needs(self) -> Needs:
        """Estimates of memory and disk."""
        return Needs()

    def work(self) -> Work | None:
        """Amount of work by the method's complexity; None where no such formula is known."""
        return None


def configure(config: type[C], namespace: Mapping[str, Any] | None = None) -> C:
    """Validate a notebook's parameters and return them as one frozen `config`.

    Args:
        config: the page's parameter class.
        namespace: where the parameters stand; by default the running kernel's user namespace.

    Raises:
        ParameterError: naming every parameter that is unknown (with the nearest known name), mistyped or out of range.
        RuntimeError: outside a kernel when no `namespace` is given.
    """
    if namespace is None:
        namespace = _user_namespace()
    given = {name: value for name, value in namespace.items() if _is_parameter(name, value)}
    known = list(config.model_fields)
    problems = [_unknown(name, known) for name in given if name not in config.model_fields]
    try:
        cfg = config(**{name: value for name, value in given.items() if name in config.model_fields})
    except ValidationError as error:
        problems += [_explained(detail) for detail in error.errors()]
    if problems:
        # `from None`: the reader of a failed run needs these lines, not pydantic's own traceback
        raise ParameterError("; ".join(problems)) from None
    return _watched(cfg) if recording() else cfg


def config_hash(cfg: Config, exclude: Iterable[str] = ("seed",)) -> str:
    """Twelve hex digits that name a configuration.

    The seed is left out, so that the seeds of one study share a name, and so are parameters that change the speed only.
    """
    values = cfg.model_dump(mode="json", exclude={*exclude, *cfg.speed_parameters})
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean x?"`` for the known name closest to `name`, or an empty string when none is near."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _watched(cfg: C) -> C:
    """`cfg` as an instance of a subclass that records the first read of each parameter, so that a rehearsal can see dead ones."""
    base, seen = type(cfg), set[str]()

    def __getattribute__(self: Any, name: str) -> Any:
        if name in base.model_fields and name not in seen:
            seen.add(name)
            record("parameter", name=name)
        return base.__getattribute__(self, name)

    watched: Any = type(base.__name__, (base,), {"__getattribute__": __getattribute__, "__module__": base.__module__})
    return watched.model_construct(**dict(cfg))


def _user_namespace() -> Mapping[str, Any]:
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:  # plain Python without IPython
        shell = None
    else:
        shell = get_ipython()
    if shell is None:
        raise RuntimeError("configure: no running kernel; pass namespace=dict(...) when calling it from a script")
    return shell.user_ns


def _is_parameter(name: str, value: Any) -> bool:
    """Plain data a user assigned: no module, function or class, nothing private, nothing of IPython's own."""
    if name.startswith("_") or name in _IPYTHON:
        return False
    return not (isinstance(value, types.ModuleType | type) or callable(value))


def _unknown(name: str, known: list[str]) -> str:
    return f"{name}: no such parameter{nearest(name, known) or '; known are ' + ', '.join(known)}"


def _explained(detail: Any) -> str:
    name = ".".join(str(part) for part in detail["loc"]) or "parameters"
    if detail["type"] in ("value_error", "assertion_error") and not detail["loc"]:
        return detail["msg"].removeprefix("Value error, ")
    came = detail["input"]
    message = f"{name}: {detail['msg'].removeprefix('Value error, ')}, got {came!r} ({type(came).__name__})"
    if detail["type"] == "float_type" and isinstance(came, str) and _is_number(came):
        message += f"; YAML reads {came} as text, write {_yaml_float(came)}"
    return message


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _yaml_float(text: str) -> str:
    """`text` as YAML 1.1 reads a float: with a decimal point and a signed exponent."""
    mantissa, mark, exponent = text.lower().partition("e")
    if "." not in mantissa:
        mantissa += ".0"
    if mark and exponent[:1] not in "+-":
        exponent = "+" + exponent
    return mantissa + mark + exponent
