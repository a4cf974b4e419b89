"""What-if panels: a figure over one or two parameters that the reader moves, computed in advance, without a server.

The author draws one frame with matplotlib as always; the panel keeps its curves as numbers in a table, and a small script of
the book draws the chosen frame from that table. Without the script a reader has the first frame and the table.
"""

from __future__ import annotations

import hashlib
import html
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from paperbook.figures import data, style

FRAMES = 120  # more is no panel but an atlas
BYTES = 60_000  # of the panel's HTML

_WIDTH, _HEIGHT = 320, 230  # of the plotting area, in units of the drawing: 13 of them are a letter, 390 a phone
_LEFT, _TOP, _RIGHT, _BOTTOM = 54, 8, 12, 46
_DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "8 3 2 3"}
_GLYPHS = {
    "o": "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z", "s": "m-3-3h6v6h-6z", "^": "m0-4l4 7h-8z", "D": "m0-4l4 4l-4 4l-4-4z",
    "v": "m0 4l4-7h-8z", "P": "m-1-4h2v3h3v2h-3v3h-2v-3h-3v-2h3z", "X": "m-3-3l6 6m0-6l-6 6",
    ".": "m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0z",
}  # fmt: skip

Setting: TypeAlias = float | int | str


@dataclass(frozen=True)
class Control:
    """A parameter that the reader may change.

    Args:
        label: its name beside the slider, as ``labelled rows n``.
        values: what it may be, in order; at least two.
        unit: written after the value.
        start: the value of the first frame; the first one by default.
    """

    label: str
    values: Sequence[Setting]
    unit: str = ""
    start: Setting | None = None

    def text(self, value: Setting) -> str:
        """`value` as a reader sees it."""
        return data.number(value if isinstance(value, str) else float(value)) + (f" {self.unit}" if self.unit else "")


@dataclass(frozen=True)
class _Curve:
    """One series of a frame: `at` holds the x of a line or a band, or nothing; `place` the value of a reference line."""

    kind: str  # line, band, vertical, horizontal
    label: str
    colour: str
    css: str
    dash: str
    glyph: str
    at: tuple[float, ...] = ()
    values: tuple[tuple[float | None, ...], ...] = ()  # (y), (low, high) or (y, low, high) at each x
    place: float = 0.0

    @property
    def style(self) -> tuple[str, ...]:
        """What must be the same in every frame."""
        return (self.kind, self.label, self.colour, self.dash, self.glyph, str(len(self.values[0]) if self.values else 0))


@dataclass(frozen=True)
class _Frame:
    setting: tuple[Setting, ...]
    curves: tuple[_Curve, ...]
    readout: dict[str, str]
    axes: tuple[tuple[str, str, float, float], ...]  # label, scale, low, high of x and y


class WhatIf:
    """A panel as a notebook shows it: HTML, and its numbers as CSV. Made by :func:`what_if`."""

    def __init__(self, title: str, alt: str, controls: dict[str, Control], frames: list[_Frame], start: int, digits: int) -> None:
        self._title, self._alt, self._controls, self._frames, self._digits = title, alt, controls, frames, digits
        self._start = start
        self._axes = tuple(_common(frames, i) for i in (0, 1))
        self._html = self._panel()
        size = len(self._html.encode())
        if size > BYTES:
            raise ValueError(
                f"frames: the panel takes {size / 1000:.0f} kB, at most {BYTES // 1000} kB; "
                "take fewer values of a control, or fewer points a curve"
            )

    def __repr__(self) -> str:
        return f"What if: {self._title} ({len(self._frames)} frames)"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html, data.MIME: self.csv_text()}

    def csv_text(self) -> str:
        """All frames in long form: the controls, series, x, y, low, high; reference lines have x or y, read-outs a value."""
        (x, x_scale, _, _), (y, y_scale, _, _) = self._axes
        comments = [data.plain(self._title), *(f"{name}: {data.plain(c.label)}" for name, c in self._controls.items())]
        comments += [f"{n}: {label}" + (f" ({scale} scale)" if scale == "log" else "")
                     for n, label, scale in (("x", x, x_scale), ("y", y, y_scale))]  # fmt: skip
        rows: list[list[Any]] = []
        for frame in self._frames:
            setting = [s if isinstance(s, str) else float(s) for s in frame.setting]
            for c in frame.curves:
                if c.kind == "vertical":
                    rows.append([*setting, c.label, c.place])
                elif c.kind == "horizontal":
                    rows.append([*setting, c.label, None, c.place])
                for at, values in zip(c.at, c.values, strict=True):
                    full = (*values, None, None) if len(values) == 1 else (None, *values) if len(values) == 2 else values
                    rows.append([*setting, c.label, at, *full])
            rows += [[*setting, name, None, None, None, None, text] for name, text in frame.readout.items()]
        return data.write(comments, [*self._controls, "series", "x", "y", "low", "high", "value"], rows)

    # --- HTML ---

    def _panel(self) -> str:
        name = "pb-whatif-" + hashlib.sha256(repr((self._title, self._frames)).encode()).hexdigest()[:8]
        (_, xs, x0, x1), (_, ys, y0, y1) = self._axes
        area = json.dumps([xs, x0, x1, _WIDTH, ys, y0, y1, _HEIGHT])
        label = _text("What if: " + self._title)
        return "\n".join([
            f'<div class="pb-whatif" id="{name}" role="group" aria-label="{label}" data-area="{_text(area)}">',
            *self._sliders(name),
            f'<p class="pb-whatif-readout" aria-live="polite">{self._said(self._frames[self._start])}</p>',
            self._legend(),
            self._drawing(name),
            self._table(),
            "</div>",
            "",
        ])  # fmt: skip

    def _setting(self, frame: _Frame) -> str:
        pairs = zip(self._controls.values(), frame.setting, strict=True)
        return ", ".join(f"{data.plain(c.label)} = {c.text(value)}" for c, value in pairs)

    def _said(self, frame: _Frame) -> str:
        found = "; ".join(f"{data.plain(name)} = {value}" for name, value in frame.readout.items())
        return _text(self._setting(frame) + (f": {found}" if found else ""))

    def _sliders(self, name: str) -> Iterator[str]:
        yield '<div class="pb-whatif-controls" hidden>'  # the script shows them: without it they would do nothing
        for i, (control, value) in enumerate(zip(self._controls.values(), self._frames[self._start].setting, strict=True)):
            texts, now = [control.text(v) for v in control.values], list(control.values).index(value)
            yield (
                f'<div class="pb-whatif-control"><label for="{name}-{i}">{_text(data.plain(control.label))}</label>'
                f'<input type="range" id="{name}-{i}" min="0" max="{len(texts) - 1}" step="1" value="{now}" autocomplete="off" '
                f'aria-valuetext="{_text(texts[now])}" data-texts="{_text(json.dumps(texts, ensure_ascii=False))}">'
                f'<output for="{name}-{i}">{_text(texts[now])}</output></div>'
            )
        yield "</div>"

    def _legend(self) -> str:
        items = []
        for c in self._frames[self._start].curves:
            path = "M16 1V13" if c.kind == "vertical" else "M1 7H31"
            sample = f'<path d="{path}" fill="none" stroke="currentColor" stroke-width="2"{_dash(c)}/>'
            if c.kind == "band":
                sample = '<path d="M1 2H31V12H1z" fill="currentColor" fill-opacity=".25"/>'
            glyph = f'<path d="M16 7{c.glyph}" fill="currentColor" stroke="currentColor"/>' if c.glyph else ""
            ink = f'class="{c.css}" color="{c.colour}"'
            icon = f'<svg width="32" height="14" viewBox="0 0 32 14" aria-hidden="true" {ink}>{sample}{glyph}</svg>'
            items.append(f"<li>{icon} {_text(c.label)}</li>")
        return f'<ul class="pb-whatif-legend">{"".join(items)}</ul>'

    def _drawing(self, name: str) -> str:
        frame = self._frames[self._start]
        (x_label, xs, x0, x1), (y_label, ys, y0, y1) = self._axes
        x_of, y_of = _scale(xs, x0, x1, _WIDTH), _scale(ys, y1, y0, _HEIGHT)
        across = [(x_of(v), text) for v, text in ticks(xs, x0, x1)]
        up = [(y_of(v), text) for v, text in ticks(ys, y0, y1)]
        grid = "".join(f"M{x:.1f} 0V{_HEIGHT}" for x, _ in across) + "".join(f"M0 {y:.1f}H{_WIDTH}" for y, _ in up)
        words = [f'<text x="{x:.1f}" y="{_HEIGHT + 17}" text-anchor="middle">{_text(text)}</text>' for x, text in across]
        words += [f'<text x="-7" y="{y + 4:.1f}" text-anchor="end">{_text(text)}</text>' for y, text in up]
        words.append(f'<text x="{_WIDTH / 2:g}" y="{_HEIGHT + 39}" text-anchor="middle">{_text(x_label)}</text>')
        words.append(f'<text transform="translate(-42 {_HEIGHT / 2:g}) rotate(-90)" text-anchor="middle">{_text(y_label)}</text>')
        column, shapes = 1, []
        for c in frame.curves:
            shapes.append(self._shapes(c, column, x_of, y_of))
            column += len(c.values[0]) if c.values else 0
        box = f"0 0 {_LEFT + _WIDTH + _RIGHT} {_TOP + _HEIGHT + _BOTTOM}"
        return "\n".join([
            f'<svg class="pb-whatif-plot" viewBox="{box}" role="img" aria-labelledby="{name}-t" aria-describedby="{name}-d">',
            f'<title id="{name}-t">{_text(self._title)}</title><desc id="{name}-d">{_text(self._alt)}</desc>',
            f'<g transform="translate({_LEFT} {_TOP})" font-size="13" fill="currentColor">',
            f'<path d="{grid}" fill="none" stroke="currentColor" stroke-opacity=".15"/>',
            *words,
            # an inner drawing cuts off what lies outside of the axes
            f'<svg width="{_WIDTH}" height="{_HEIGHT}" overflow="hidden">{"".join(shapes)}</svg>',
            f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="currentColor"/></g></svg>',
        ])  # fmt: skip

    def _shapes(self, c: _Curve, column: int, x_of: Callable[[float], float], y_of: Callable[[float], float]) -> str:
        """The paths of one series, with what the script needs to draw it anew: its columns in the table, its kind."""
        c = _rounded(c, self._digits)
        parts = []
        line = f'fill="none" stroke="currentColor" stroke-width="2"{_dash(c)}'
        if c.kind in ("vertical", "horizontal"):
            d = f"M{x_of(c.place):.1f} 0V{_HEIGHT}" if c.kind == "vertical" else f"M0 {y_of(c.place):.1f}H{_WIDTH}"
            parts.append(f'<path data-draw="{c.kind}" d="{d}" {line}/>')
        else:
            width = len(c.values[0])
            if width > 1:
                low, high = ([(x, v[i]) for x, v in zip(c.at, c.values, strict=True)] for i in (-2, -1))
                d = _points([*low, *reversed(high)], x_of, y_of)
                columns = f"{column + width - 2} {column + width - 1}"
                parts.append(f'<path data-draw="band" data-columns="{columns}" d="{d}z" fill="currentColor" fill-opacity=".2"/>')
            if width != 2:
                middle = [(x, v[0]) for x, v in zip(c.at, c.values, strict=True)]
                parts.append(f'<path data-draw="line" data-columns="{column}" d="{_points(middle, x_of, y_of)}" {line}/>')
                if c.glyph:
                    d = _points(middle, x_of, y_of, c.glyph)
                    parts.append(f'<path data-draw="marks" data-columns="{column}" data-glyph="{c.glyph}" d="{d}" '
                                 'fill="currentColor" stroke="currentColor"/>')  # fmt: skip
        return f'<g class="{c.css}" color="{c.colour}">{"".join(parts)}</g>'

    def _table(self) -> str:
        heads = [self._axes[0][0]]
        for c in self._frames[0].curves:
            width = len(c.values[0]) if c.values else 0
            heads += [c.label] * (width != 2 and width > 0) + [f"{c.label}, {end}" for end in ("low", "high")] * (width > 1)
        named = "".join(f'<th scope="col">{_text(head)}</th>' for head in heads)
        text = [f"<thead><tr>{named}</tr></thead>"]
        for frame in self._frames:
            curves = [_rounded(c, self._digits) for c in frame.curves]
            places = json.dumps([float(c.place) for c in curves if c.kind in ("vertical", "horizontal")])
            said = f'<th colspan="{len(heads)}" scope="rowgroup"><span>{self._said(frame)}</span></th>'
            text.append(f'<tbody data-places="{places}"><tr>{said}</tr>')
            known = [(dict(zip(c.at, c.values, strict=True)), len(c.values[0])) for c in curves if c.values]
            for x in sorted({x for c in curves for x in c.at}):
                cells = [v for values, width in known for v in values.get(x, (None,) * width)]
                shown = "".join(f"<td>{data.number(v, self._digits)}</td>" for v in cells)
                text.append(f'<tr><th scope="row">{data.number(x)}</th>{shown}</tr>')
            text.append("</tbody>")
        return (
            f"<details class=\"pb-whatif-values\"><summary>All values as a table ({len(self._frames)} settings)</summary>\n"
            f'<div class="pb-scroll" tabindex="0" role="region" aria-label="{_text("All values: " + self._title)}">'
            f"<table>{''.join(text)}</table></div></details>"
        )


def what_if(
    controls: Mapping[str, Control],
    frames: Callable[..., Any] | Mapping[str, Any],
    draw: Callable[[Any, Any], None],
    *,
    title: str,
    alt: str,
    readout: Callable[[Any], Mapping[str, float | str]] | None = None,
    digits: int = 3,
) -> WhatIf:
    """A panel in which the reader moves one or two parameters and sees the figure change; end a cell with it.

    ::

        what_if({"n": Control("rows n", (500, 2000))}, lambda n: n**-0.5,
                lambda axes, rate: axes.plot(x, rate * x, label="risk"), title="Risk by rows", alt="A line that ...")

    Args:
        controls: name -> :class:`Control`, one or two of them.
        frames: a function of the controls' names that computes one frame, called once for each combination; or a result table,
            a mapping (or data frame) of equally long columns, among them the controls' names: a frame is then a dictionary of
            arrays, the rows of one combination.
        draw: draws one frame into matplotlib axes: lines (`plot`, :func:`~paperbook.figures.style.band`), `fill_between`,
            `axvline` and `axhline`, each with a label, the same in every frame; linear and log scales.
        title: what the panel shows, for screen readers.
        alt: what the eye sees in it.
        readout: name -> number or text of one frame, written above the figure and read out when it changes.
        digits: significant digits of the curves in the panel; its CSV has six.

    Raises:
        ValueError: no control or more than two, a control with fewer than two values, more than `FRAMES` frames, a missing
            frame, a curve without a label or with a value that is not finite, frames that do not show the same series, something
            drawn that a panel does not hold, a panel of more than `BYTES`.
    """
    for name, text in (("title", title), ("alt", alt)):
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{name}: expected a sentence, got {text!r}")
    if isinstance(digits, bool) or not isinstance(digits, int) or not 2 <= digits <= 6:
        raise ValueError(f"digits: expected a number from 2 to 6, got {digits!r}")
    grid, start = _grid(controls)
    style.use_style()
    found = []
    for setting in grid:
        here = dict(zip(controls, setting, strict=True))
        where = ", ".join(f"{name}={value}" for name, value in here.items())
        frame = frames(**here) if callable(frames) else _rows(frames, here, where)
        if frame is None:
            raise ValueError(f"frames: no frame for {where}: the function returned None")
        curves, axes = _draw(draw, frame, where)
        said = {name: value if isinstance(value, str) else data.number(_finite(value, f"readout: {where}: {name}"), 3)
                for name, value in (readout(frame).items() if readout else ())}  # fmt: skip
        found.append(_Frame(setting, curves, said, axes))
        for what, ours, first in (
            ("series", [c.style for c in curves], [c.style for c in found[0].curves]),
            ("axes", [a[:2] for a in axes], [a[:2] for a in found[0].axes]),
            ("read-outs", list(said), list(found[0].readout)),
        ):
            if ours != first:
                raise ValueError(f"draw: {where}: expected the {what} of the first frame, {first}, got {ours}")
    return WhatIf(title, alt, dict(controls), found, start, digits)


def _grid(controls: Mapping[str, Control]) -> tuple[list[tuple[Setting, ...]], int]:
    """All combinations, the last control changing fastest, and the position of the first one shown."""
    if not 1 <= len(controls) <= 2:
        raise ValueError(f"controls: expected one or two, got {len(controls)}")
    for name, control in controls.items():
        if len(control.values) < 2 or len(set(control.values)) != len(control.values):
            raise ValueError(f"controls: {name}: expected two or more different values, got {list(control.values)}")
        if control.start is not None and control.start not in control.values:
            raise ValueError(f"controls: {name}: start: expected one of {list(control.values)}, got {control.start!r}")
    grid = list(itertools.product(*(control.values for control in controls.values())))
    if len(grid) > FRAMES:
        raise ValueError(f"controls: expected at most {FRAMES} frames, got {len(grid)}")
    first = tuple(c.values[0] if c.start is None else c.start for c in controls.values())
    return grid, grid.index(first)


def _rows(table: Mapping[str, Any], setting: dict[str, Setting], where: str) -> dict[str, np.ndarray[Any, Any]]:
    columns = {str(name): np.asarray(table[name]) for name in table}
    missing = [name for name in setting if name not in columns]
    if missing:
        raise ValueError(f"frames: expected the columns {', '.join(setting)}, got {', '.join(columns) or 'none'}")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"frames: expected columns of one length, got {lengths}")
    kept = np.all([columns[name] == value for name, value in setting.items()], axis=0)
    if not kept.any():
        raise ValueError(f"frames: no rows for {where}")
    return {name: column[kept] for name, column in columns.items()}


def _finite(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: expected a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{where}: expected a finite number, got {number}")
    return number


def _draw(draw: Callable[[Any, Any], None], frame: Any, where: str) -> tuple[tuple[_Curve, ...], tuple[Any, ...]]:
    from matplotlib.figure import Figure

    axes = Figure(figsize=(6.0, 3.6)).subplots()
    draw(axes, frame)
    if axes.texts:
        raise ValueError(f"draw: {where}: a panel holds no text ({axes.texts[0].get_text()!r}); use labels and the read-out")
    bare = [artist for artist in axes.lines if not data.label_of(artist)]
    if bare:
        raise ValueError(f"draw: {where}: expected a label for each line, got {len(bare)} without")
    curves = []
    for one in data.drawn(axes):
        if one.kind not in ("line", "band") or (one.kind == "band" and "x" not in one.points[0]):
            raise ValueError(f"draw: {where}: a panel holds lines, bands and reference lines, got {one.kind}")
        if not one.label:
            raise ValueError(f"draw: {where}: expected a label for each band, got none")
        curves.append(_curve(one, where))
    if not curves:
        raise ValueError(f"draw: {where}: expected at least one line, got nothing")
    if len({c.label for c in curves}) < len(curves):
        raise ValueError(f"draw: {where}: expected a label of its own for each series, got {[c.label for c in curves]}")
    sides = []
    for name, axis, limits in (("x", axes.xaxis, axes.get_xlim()), ("y", axes.yaxis, axes.get_ylim())):
        if axis.get_scale() not in ("linear", "log"):
            raise ValueError(f"draw: {where}: {name}: expected a linear or a log scale, got {axis.get_scale()}")
        label = data.plain(axis.get_label_text())
        if not label:
            raise ValueError(f"draw: {where}: {name}: expected a label with its unit, got none")
        sides.append((label, str(axis.get_scale()), float(limits[0]), float(limits[1])))
    _positive(curves, sides, where)
    return tuple(curves), tuple(sides)


def _curve(one: data.Drawn, where: str) -> _Curve:
    from matplotlib.colors import to_hex

    colour = to_hex(data.colour_of(one.artist))  # type: ignore[arg-type]
    known = [c.lower() for c in style.PALETTE]
    css = f"pb-ink-{known.index(colour)}" if colour in known else "pb-ink-other"
    dash = glyph = ""
    if one.kind == "line":
        dash = _DASHES.get(one.artist.get_linestyle(), "")
        glyph = _GLYPHS.get(str(one.artist.get_marker()), "")
    common = (one.label, colour, css, dash, glyph)
    place = f"draw: {where}: {one.label}"
    if one.kind == "line" and set(one.points[0]) == {"x"}:
        return _Curve("vertical", *common, place=_finite(one.points[0]["x"], place))
    if one.kind == "line" and set(one.points[0]) == {"y"}:
        return _Curve("horizontal", *common, place=_finite(one.points[0]["y"], place))
    names = [name for name in ("y", "low", "high") if any(name in point for point in one.points)]
    points = sorted(one.points, key=lambda point: float(point["x"]))  # type: ignore[arg-type]
    at = tuple(_finite(point["x"], place) for point in points)
    if len(set(at)) < len(at):
        raise ValueError(f"{place}: expected one point for each x, got some twice")
    values = tuple(tuple(_finite(point.get(name), place) for name in names) for point in points)
    return _Curve(one.kind, *common, at, values)


def _positive(curves: list[_Curve], sides: list[tuple[str, str, float, float]], where: str) -> None:
    for c in curves:
        xs = [*c.at, *([c.place] if c.kind == "vertical" else [])]
        ys = [*(v for values in c.values for v in values if v is not None), *([c.place] if c.kind == "horizontal" else [])]
        for name, values, side in (("x", xs, sides[0]), ("y", ys, sides[1])):
            if side[1] == "log" and min(values, default=1.0) <= 0:
                raise ValueError(f"draw: {where}: {c.label}: {name}: expected numbers above 0 on a log scale, got {min(values)}")


def _common(frames: list[_Frame], side: int) -> tuple[str, str, float, float]:
    """Label and scale of one axis, and limits that hold every frame: frames are compared by eye."""
    label, scale = frames[0].axes[side][:2]
    return label, scale, min(f.axes[side][2] for f in frames), max(f.axes[side][3] for f in frames)


def _rounded(c: _Curve, digits: int) -> _Curve:
    """The numbers as the table says them, so that the first frame is what the script would draw."""
    values = tuple(tuple(None if v is None else float(f"{v:.{digits}g}") for v in row) for row in c.values)
    at = tuple(float(f"{x:.6g}") for x in c.at)
    return _Curve(c.kind, c.label, c.colour, c.css, c.dash, c.glyph, at, values, float(f"{c.place:.6g}"))


def _scale(kind: str, low: float, high: float, length: float) -> Callable[[float], float]:
    of = math.log if kind == "log" else float
    return lambda value: (of(value) - of(low)) / (of(high) - of(low)) * length


def _points(points: list[tuple[float, float | None]], x_of: Any, y_of: Any, glyph: str = "") -> str:
    pairs = [f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in points if y is not None]
    return "".join(f"M{pair}{glyph}" for pair in pairs) if glyph else "M" + "L".join(pairs)


def _dash(c: _Curve) -> str:
    return f' stroke-dasharray="{c.dash}"' if c.dash else ""


def _text(text: str) -> str:
    return html.escape(text, quote=True)


_UP = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def ticks(scale: str, low: float, high: float) -> list[tuple[float, str]]:
    """Places and texts of the ticks between `low` and `high`: powers of ten on a log scale, with 2 and 5 where those are few."""
    from matplotlib.ticker import MaxNLocator

    if scale == "linear":
        places = [float(v) for v in MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)]
        return [(v, data.number(v).replace("-", "−")) for v in places if low <= v <= high]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    few = last - first <= 3
    step = max(1, (last - first) // 6)
    places = [float(f"{digit}e{power}") for power in range(first, last + 1, step) for digit in ((1, 2, 5) if few else (1,))]
    places = [v for v in places if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
    short = all(1e-3 <= v < 1e5 for v in places)
    return [(v, data.number(v) if short else _power(v)) for v in places]


def _power(value: float) -> str:
    digit, power = f"{value:.0e}".split("e")
    ten = "10" + str(int(power)).translate(_UP)
    return ten if digit == "1" else f"{digit}·{ten}"
