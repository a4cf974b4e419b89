"""Parameters of pydantic classes as rows of a table: type, default, range and meaning, without pydantic's internals."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined


@dataclass(frozen=True)
class Row:
    """One parameter, every column as text."""

    name: str
    type: str
    default: str
    range: str
    meaning: str


def has_fields(cls: Any) -> bool:
    """Whether `cls` is a pydantic model."""
    return issubclass(cls, BaseModel)


def rows(cls: type[BaseModel]) -> tuple[list[Row], dict[str, list[str]]]:
    """The parameters a class defines itself or takes from a private base, and those of public bases by that base's full name."""
    own: list[Row] = []
    inherited: dict[str, list[str]] = {}
    for name, field in cls.model_fields.items():
        owner = next(base for base in cls.__mro__ if name in vars(base).get("__annotations__", {}))
        if owner is cls or owner.__name__.startswith("_"):
            own.append(_row(name, field))
        else:
            inherited.setdefault(f"{owner.__module__}.{owner.__qualname__}", []).append(name)
    return own, inherited


def _row(name: str, field: FieldInfo) -> Row:
    default: Any = field.default
    if field.default_factory is not None:
        default = field.get_default(call_default_factory=True, validated_data={})
    shown = "required" if default is PydanticUndefined else _value(default)
    return Row(name, type_text(field.annotation), shown, range_text(field.annotation, field.metadata), field.description or "–")


def _value(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def type_text(annotation: Any) -> str:
    """A type without its bounds: ``list[float]``, ``int | None``; of a choice, the type of what is chosen."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(inside[0])
    if origin is Literal:
        return " | ".join(dict.fromkeys(type(value).__name__ for value in inside))
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_text(part) for part in inside))
    if annotation is type(None):
        return "None"
    if annotation is Ellipsis:
        return "..."
    if origin is not None:
        return f"{_plain(origin)}[{', '.join(type_text(part) for part in inside)}]"
    return _plain(annotation)


def _plain(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation)).rpartition(".")[2]


def range_text(annotation: Any, metadata: list[Any]) -> str:
    """What a value may be: ``0 < x < 1``, ``at least 2 values, each ≥ 0``, the choices; a dash where anything may be."""
    parts = [_bounds(metadata)] if _bounds(metadata) else []
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        below = range_text(inside[0], [part for extra in inside[1:] for part in getattr(extra, "metadata", [extra])])
        parts += [below] if below != "–" else []
    elif origin is Literal:
        parts.append(", ".join(_value(value) for value in inside))
    elif origin in (Union, types.UnionType):
        parts += [text for text in (range_text(part, []) for part in inside) if text != "–"]
    elif origin in (list, tuple, set, dict):
        parts += [f"each {text}" for text in dict.fromkeys(range_text(part, []) for part in inside) if text != "–"]
    return ", ".join(parts) or "–"


def _bounds(metadata: list[Any]) -> str:
    low = high = ""
    others = []
    for limit in metadata:
        for name, sign in (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<")):
            value = getattr(limit, name, None)
            if value is not None and sign in "≥>":
                low = f"{sign} {_number(value)}"
            elif value is not None:
                high = f"{sign} {_number(value)}"
        for name, words in (("min_length", "at least {} values"), ("max_length", "at most {} values"),
                            ("multiple_of", "a multiple of {}"), ("pattern", "matches {}")):  # fmt: skip
            value = getattr(limit, name, None)
            if value is not None:
                others.append(words.format(value).replace(" 1 values", " 1 value"))
    if low and high:
        turned = low.replace("≥", "≤").replace(">", "<")
        others.append(f"{turned[2:]} {turned[0]} x {high}")
    else:
        others += [bound for bound in (low, high) if bound]
    return ", ".join(others)


def _number(value: Any) -> str:
    """Round numbers as powers: 10⁸, 2³¹."""
    if isinstance(value, int) and value >= 1024:
        if value & (value - 1) == 0:
            return f"2{_raised(value.bit_length() - 1)}"
        digits = str(value).rstrip("0")
        zeros = len(str(value)) - len(digits)
        if zeros >= 4:
            return f"10{_raised(zeros)}" if digits == "1" else f"{digits} × 10{_raised(zeros)}"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _raised(power: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(power))
