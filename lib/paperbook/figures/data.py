"""The numbers behind a figure, read back from what was drawn: one CSV a figure, without a line by the author.

Long form: one row a point, with the panel, the series (its label in the legend), x, y and the interval around y. What only
decorates (reference lines, spans, text) is left out unless it has a label.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MIME = "text/csv"
ROWS = 2000  # of one figure; longer series are thinned evenly and the file says so

Value: TypeAlias = float | str | None


@dataclass(frozen=True)
class Row:
    """One point. None means that the drawing says nothing of it; NaN that the author drew a NaN.

    `x` and `y` are the tick's label on a categorical axis. `low` and `high` belong to y, `x_low` and `x_high` to x (horizontal
    error bars, bins). `value` is the colour of a cell in an image or heat map, whose column and row are x and y.
    """

    panel: int
    series: str
    x: Value = None
    y: Value = None
    low: Value = None
    high: Value = None
    x_low: Value = None
    x_high: Value = None
    value: Value = None


_ALWAYS = ("panel", "series", "x", "y", "low", "high")
_SELDOM = ("x_low", "x_high", "value")  # written only where a figure has them


@dataclass(frozen=True)
class Drawn:
    """The points of one artist before they have a name: `label` is the author's, `look` tells it from others.

    `artist` is the line or the band that was drawn, None for anything else.
    """

    kind: str
    points: list[dict[str, Value]]
    label: str = ""
    look: tuple[Any, ...] = ()
    artist: Any = None


def table(figure: Figure) -> list[Row]:
    """The data of `figure` in the order of drawing, panel by panel.

    Lines, error bars, bands (joined to the line of the same colour over the same x), bars, histograms, scatter, stems, steps,
    images and heat maps, contours and arrows are read. A series of an artist without a label is called after the labelled one
    that looks the same, else ``line 2``, ``points 1`` and so on.

    Args:
        figure: a matplotlib figure, drawn or not.
    """
    return [row for series in _series(figure) for row in series]


def csv_text(figure: Figure) -> str:
    """The data of `figure` as CSV: comment lines (``# panel 1: ...``) with titles, axis labels and scales, a header, the rows.

    Numbers have 6 significant digits. At most about `ROWS` rows: a comment names each series that was thinned, with its true
    length. The text is empty when the figure shows no data.
    """
    series = _series(figure)
    if not series:
        return ""
    cap = max(2, ROWS // len(series))
    comments = [_describe(number, axes) for number, axes in enumerate(_panels(figure), start=1)]
    kept: list[Row] = []
    for rows in series:
        if len(rows) > cap and sum(map(len, series)) > ROWS:
            first = rows[0]
            comments.append(f"panel {first.panel}, {first.series}: {cap} of {len(rows)} points, evenly spaced in their order")
            rows = [rows[i] for i in np.linspace(0, len(rows) - 1, cap).round().astype(int)]
        kept += rows
    names = [*_ALWAYS, *(name for name in _SELDOM if any(getattr(row, name) is not None for row in kept))]
    return write(comments, names, [[getattr(row, name) for name in names] for row in kept])


def write(comments: list[str], header: list[str], rows: list[list[Any]]) -> str:
    """CSV with `comments` above its `header`; numbers in 6 significant digits, short rows filled up with nothing."""
    stream = io.StringIO()
    stream.writelines(f"# {comment}\n" for comment in comments)
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([*map(number, row), *[""] * (len(header) - len(row))] for row in rows)
    return stream.getvalue()


def number(value: Value, digits: int = 6) -> str:
    """`value` as it is written: `digits` significant digits, text as it is, nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    if not math.isfinite(value):
        return str(float(value))
    return f"{value + 0.0:.{digits}g}"  # + 0.0: no minus before a zero


def plain(text: str) -> str:
    """A label without mathematics: ``radius $\\delta_c$`` becomes ``radius δ_c``; one line, no ``#``."""

    def letter(match: re.Match[str]) -> str:
        name = match[1]
        case = "CAPITAL" if name[0].isupper() else "SMALL"
        try:
            return unicodedata.lookup(f"GREEK {case} LETTER {_GREEK.get(name, name).upper()}")
        except KeyError:
            return _SIGNS.get(name, name)

    def formula(match: re.Match[str]) -> str:
        inner = re.sub(r"\\(?:math[a-z]+|text|hat|bar|tilde|left|right|[,;!])(?![a-z])", "", match[1])
        return re.sub(r"[{}]", "", re.sub(r"\\([A-Za-z]+)", letter, inner))

    text = re.sub(r"\$([^$]*)\$", formula, text)
    return re.sub(r"\s+", " ", text.replace("#", "no. ")).strip()


_GREEK = {"varepsilon": "epsilon", "varphi": "phi", "lambda": "lamda", "Lambda": "Lamda"}  # as Unicode spells them
_SIGNS = {"cdot": "·", "times": "×", "leq": "≤", "le": "≤", "geq": "≥", "ge": "≥", "pm": "±", "infty": "∞", "sqrt": "√",
          "ell": "ℓ", "approx": "≈", "to": "→", "rightarrow": "→", "partial": "∂", "sum": "Σ", "Vert": "‖", "star": "*",
          "ast": "*", "quad": " "}  # fmt: skip


# --- panels and axes ---------------------------------------------------------------------------------------------


def _panels(figure: Figure) -> list[Any]:
    """The axes that show data; colour bars repeat what the values of their panel say."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def _describe(number_: int, axes: Any) -> str:
    parts = [plain(axes.get_title())] if axes.get_title() else []
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        label, scale = plain(axis.get_label_text()), axis.get_scale()
        if label or scale != "linear":
            parts.append(f"{name}: {label or 'no label'}" + (f" ({scale} scale)" if scale != "linear" else ""))
    return f"panel {number_}: " + ("; ".join(parts) or "axes without labels")


def _categories(axis: Any) -> dict[float, str]:
    """Position -> label of an axis of categories: neighbouring ticks one apart, with labels that are not their positions."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter

    strings = getattr(getattr(axis, "units", None), "_mapping", None)
    if strings is not None:  # words were plotted
        return {float(place): plain(str(name)) for name, place in strings.items()}
    form, locator = axis.get_major_formatter(), axis.get_major_locator()
    if not isinstance(form, FixedFormatter | FuncFormatter) or not isinstance(locator, FixedLocator):
        return {}
    places = [float(place) for place in locator()]
    names = [plain(str(name)) for name in form.format_ticks(places)]
    apart = all(math.isclose(b - a, 1.0) for a, b in itertools.pairwise(places))
    if len(names) < 2 or not apart or not all(names) or axis.get_scale() != "linear":
        return {}
    named = dict(zip(places, names, strict=True))
    return {} if all(_is_number(name, place) for place, name in named.items()) else named


def _is_number(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=1e-6, abs_tol=1e-9)
    except ValueError:
        return False


def _named(value: Value, categories: dict[float, str]) -> Value:
    """The label of the nearest category: grouped bars and jittered dots stand beside its tick."""
    if not categories or not isinstance(value, float) or not math.isfinite(value):
        return value
    place = min(categories, key=lambda tick: abs(tick - value))
    return categories[place] if abs(place - value) <= 0.5 else value


# --- series ------------------------------------------------------------------------------------------------------


def _series(figure: Figure) -> list[list[Row]]:
    all_drawn = [(panel, axes, list(drawn(axes))) for panel, axes in enumerate(_panels(figure), start=1)]
    looks: dict[tuple[Any, ...], str] = {}
    for _, _, found in all_drawn:
        for one in found:
            if one.label and one.look:
                looks.setdefault(one.look, one.label)
    series = []
    for panel, axes, found in all_drawn:
        across, up = _categories(axes.xaxis), _categories(axes.yaxis)
        counts: dict[str, int] = {}
        for one in found:
            name = one.label or (looks.get(one.look, "") if one.look else "")
            if not name:
                counts[one.kind] = counts.get(one.kind, 0) + 1
                name = f"{one.kind} {counts[one.kind]}"
            rows = [Row(panel, name, **point) for point in one.points]
            if across and one.kind == "bars":  # the edges of a category mean nothing
                rows = [replace(row, x_low=None, x_high=None) if isinstance(_named(row.x, across), str) else row for row in rows]
            rows = [replace(row, x=_named(row.x, across), y=_named(row.y, up)) for row in rows]
            if rows:
                series.append(rows)
    return series


def label_of(artist: Any) -> str:
    label = str(artist.get_label() or "")
    return "" if label.startswith("_") else plain(label)


def _floats(values: Any) -> list[float]:
    return [float(v) for v in _array(values).ravel()]


def _array(values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Numbers with NaN where they are masked."""
    return np.asarray(np.ma.filled(np.ma.asarray(values, dtype=float), np.nan))


def drawn(axes: Any) -> Iterator[Drawn]:
    """What the axes show, in a fixed order: bars, error bars, stems, lines with their bands, collections, patches, images."""
    from matplotlib.container import BarContainer, ErrorbarContainer, StemContainer

    used: set[int] = set()
    groups = [group for group in axes.containers if isinstance(group, BarContainer)]
    for bars in groups:
        used.update(map(id, bars.patches))
        if bars.errorbar is not None:
            used.update(map(id, _parts(bars.errorbar)))
        yield _bars(bars)
    for group in axes.containers:
        if isinstance(group, ErrorbarContainer) and not used & set(map(id, _parts(group))):
            used.update(map(id, _parts(group)))
            yield _errorbar(group)
        elif isinstance(group, StemContainer):
            used.update(map(id, (group.markerline, group.stemlines, group.baseline)))
            yield Drawn("stems", _points(*_xy(group.markerline)), label_of(group))
    bands = [b for b in axes.collections if id(b) not in used and (points := _band_points(b))]
    lines = [line for line in axes.lines if id(line) not in used and _is_data(line, axes)]
    joined = _join(lines, bands)
    for line in lines:
        points = _in_data(line, axes)
        for band in joined.get(id(line), []):
            used.add(id(band))
            points = _with_interval(points, _band_points(band))
        yield Drawn("line", points, label_of(line), ("line", colour_of(line), line.get_linestyle(), line.get_marker()), line)
    for collection in axes.collections:
        if id(collection) not in used:
            yield from _collection(collection, lines)
    for patch in axes.patches:
        if id(patch) not in used:
            yield from _patch(patch, axes)
    for image in axes.images:
        yield from _image(image)


def _points(x: list[float], y: list[float]) -> list[dict[str, Value]]:
    return [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]


def _xy(line: Any) -> tuple[list[float], list[float]]:
    return _floats(line.get_xdata(orig=False)), _floats(line.get_ydata(orig=False))


def colour_of(artist: Any) -> tuple[float, ...]:
    """Red, green and blue of a line or a band; transparency apart, in which a band differs from its line."""
    from matplotlib.colors import to_rgb

    if hasattr(artist, "get_color"):
        return tuple(to_rgb(artist.get_color()))
    colours = artist.get_facecolor()
    return tuple(float(c) for c in colours[0][:3]) if len(colours) else ()


def _is_data(line: Any, axes: Any) -> bool:
    """Whether a line shows data: a labelled one does, an `axhline` or a lone line of two points beside others does not."""
    from matplotlib.lines import AxLine

    if isinstance(line, AxLine):  # endless: it has a slope and no points
        return False
    if label_of(line):
        return True
    others = [other for other in axes.lines if other is not line and label_of(other)] or axes.collections or axes.patches
    return line.get_transform() == axes.transData and not (len(line.get_xdata()) == 2 and others)


def _in_data(line: Any, axes: Any) -> list[dict[str, Value]]:
    """The points of a line; of an `axvline` or `axhline` only the coordinate that is a value, once."""
    points = _points(*_xy(line))
    across, up = line.get_transform().contains_branch_seperately(axes.transData)
    return points if across and up else [{key: points[0][key] for key, kept in (("x", across), ("y", up)) if kept}]


def _parts(group: Any) -> list[Any]:
    line, caps, bars = group.lines
    return [*([line] if line is not None else []), *caps, *bars]


def _errorbar(group: Any) -> Drawn:
    line, _, bars = group.lines
    bars = list(bars)
    across = _spans(bars.pop(0), 0) if group.has_xerr and bars else []
    up = _spans(bars.pop(0), 1) if group.has_yerr and bars else []
    if line is not None:
        points = _points(*_xy(line))
    else:  # fmt="none": bars without a centre
        points = [{"x": at} for at, _, _ in up] if up else [{"y": at} for at, _, _ in across]
    for spans, low, high in ((across, "x_low", "x_high"), (up, "low", "high")):
        for point, span in zip(points, spans, strict=False):
            point[low], point[high] = span[1:]
    return Drawn("error bars", points, label_of(group))


def _spans(bars: Any, axis: int) -> list[tuple[float, float, float]]:
    """(place, low, high) of each bar of a collection of segments that run along `axis`."""
    found = []
    for segment in bars.get_segments():
        ends = _array(segment)
        along = ends[:, axis] if len(ends) else np.array([np.nan])
        found.append((float(ends[0, 1 - axis]) if len(ends) else math.nan, float(along.min()), float(along.max())))
    return found


def _bars(bars: Any) -> Drawn:
    upright = bars.orientation != "horizontal"
    spans = []
    if bars.errorbar is not None and bars.errorbar.lines[2]:
        spans = _spans(bars.errorbar.lines[2][0], 1 if upright else 0)
    points = []
    for i, patch in enumerate(bars.patches):
        x, y, width, height = (float(v) for v in (patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height()))
        point: dict[str, Value] = {"x": x + width / 2, "y": height} if upright else {"x": width, "y": y + height / 2}
        low, high = ("low", "high") if upright else ("x_low", "x_high")
        base, length = (y, height) if upright else (x, width)
        if i < len(spans):
            point[low], point[high] = spans[i][1:]
        elif base != 0:  # stacked: where the piece begins and ends
            point[low], point[high] = base, base + length
        if upright and not i < len(spans):
            point["x_low"], point["x_high"] = x, x + width  # bins of a histogram
        points.append(point)
    # `hist` gives its label to the first bar
    return Drawn("bars", points, label_of(bars) or (label_of(bars.patches[0]) if bars.patches else ""))


def _band_points(collection: Any) -> list[dict[str, Value]]:
    """The interval at each x of a `fill_between`; empty for other collections."""
    from matplotlib.collections import PolyCollection

    if not isinstance(collection, PolyCollection) or collection.get_array() is not None:
        return []
    paths = [_array(path.vertices) for path in collection.get_paths()]
    paths = [path for path in paths if len(path) > 3]
    if not paths or _offset(collection):
        return []
    across = getattr(collection, "t_direction", None) or (
        "x" if all(len(np.unique(p[:, 0])) <= len(np.unique(p[:, 1])) for p in paths) else "y"
    )
    place, names = (0, ("x", "low", "high")) if across == "x" else (1, ("y", "x_low", "x_high"))
    found: list[dict[str, Value]] = []
    for path in paths:
        at, value = path[:, place], path[:, 1 - place]
        for t in np.unique(at[np.isfinite(at)]):
            here = value[at == t]
            found.append(dict(zip(names, (float(t), float(here.min()), float(here.max())), strict=True)))
    return found


def _offset(collection: Any) -> bool:
    """Whether a collection repeats one shape at many places, as `hexbin` does."""
    return len(np.atleast_2d(collection.get_offsets())) > 1


def _join(lines: list[Any], bands: list[Any]) -> dict[int, list[Any]]:
    """Line -> the bands that belong to it: same colour, no label of another name, and every x of the band a point of the line."""
    joined: dict[int, list[Any]] = {}
    for band in bands:
        points = _band_points(band)
        if "x" not in points[0]:
            continue
        at = np.array([p["x"] for p in points], dtype=float)
        ends = np.array([(p["low"], p["high"]) for p in points], dtype=float)
        best = None
        for line in lines:
            x, y = (np.array(values) for values in _xy(line))
            same = colour_of(line) == colour_of(band) and label_of(band) in ("", label_of(line)) and id(line) not in joined
            if not same or not len(x) or not all(np.isclose(x, t, rtol=1e-9, atol=0).any() for t in at):
                continue
            inside = np.mean([ends[i, 0] <= np.interp(at[i], x, y) <= ends[i, 1] for i in range(len(at))])
            if best is None or inside > best[0]:
                best = (inside, line)
        if best is not None:
            joined[id(best[1])] = [band]
    return joined


def _with_interval(points: list[dict[str, Value]], band: list[dict[str, Value]]) -> list[dict[str, Value]]:
    at = np.array([p["x"] for p in band], dtype=float)
    found = []
    for point in points:
        near = np.isclose(at, point["x"], rtol=1e-9, atol=0)  # type: ignore[arg-type]
        ends = band[int(near.argmax())] if near.any() else {}
        found.append(point | {key: ends[key] for key in ("low", "high") if key in ends})
    return found


def _collection(collection: Any, lines: list[Any]) -> Iterator[Drawn]:
    from matplotlib.collections import LineCollection, PathCollection, QuadMesh
    from matplotlib.contour import ContourSet
    from matplotlib.quiver import Quiver

    label = label_of(collection)
    if isinstance(collection, ContourSet):
        for level, path in zip(collection.levels, collection.get_paths(), strict=False):
            corners = _array(path.vertices)
            yield Drawn("contour", _cells(_floats(corners[:, 0]), _floats(corners[:, 1]), [float(level)] * len(corners)), label)
    elif isinstance(collection, QuadMesh):
        corners = _array(collection.get_coordinates())
        middle = (corners[:-1, :-1] + corners[1:, :-1] + corners[:-1, 1:] + corners[1:, 1:]) / 4
        values = _floats(collection.get_array())
        if len(values) == middle[..., 0].size:
            yield Drawn("heat map", _cells(_floats(middle[..., 0]), _floats(middle[..., 1]), values), label)
    elif isinstance(collection, Quiver):
        for name, part in (("u", collection.U), ("v", collection.V)):
            cells = _cells(_floats(collection.X), _floats(collection.Y), _floats(part))
            yield Drawn("arrows", cells, f"{label or 'arrows'}, {name}")
    elif isinstance(collection, LineCollection):
        yield from _segments(collection, label)
    elif points := _band_points(collection):
        # a band that no line took: it keeps the name of a line of its colour, if there is one
        twins = [label_of(line) for line in lines if colour_of(line) == colour_of(collection) and label_of(line)]
        yield Drawn("band", points, label or (f"{twins[0]} (band)" if twins else ""), artist=collection)
    elif isinstance(collection, PathCollection) or _offset(collection):  # scatter, hexbin
        where = np.atleast_2d(_array(collection.get_offsets()))
        x, y = _floats(where[:, 0]), _floats(where[:, 1])
        colours = collection.get_array()
        valued = colours is not None and np.size(colours) == len(x)
        yield Drawn("points", _cells(x, y, _floats(colours)) if valued else _points(x, y), label)


def _cells(x: list[float], y: list[float], values: list[float]) -> list[dict[str, Value]]:
    return [{"x": a, "y": b, "value": v} for a, b, v in zip(x, y, values, strict=True)]


def _segments(collection: Any, label: str) -> Iterator[Drawn]:
    """`hlines` and `vlines` are intervals, other segments are lines; a single one without a label is a reference."""
    segments = [_array(ends) for ends in collection.get_segments()]
    if len(segments) < 2 and not label:
        return
    points: list[dict[str, Value]] = []
    for ends in segments:
        if len(ends) == 2 and ends[0, 0] == ends[1, 0]:
            points.append({"x": float(ends[0, 0]), "low": float(ends[:, 1].min()), "high": float(ends[:, 1].max())})
        elif len(ends) == 2 and ends[0, 1] == ends[1, 1]:
            points.append({"y": float(ends[0, 1]), "x_low": float(ends[:, 0].min()), "x_high": float(ends[:, 0].max())})
        else:
            points += _points(_floats(ends[:, 0]), _floats(ends[:, 1]))
    yield Drawn("segments", points, label)


def _patch(patch: Any, axes: Any) -> Iterator[Drawn]:
    from matplotlib.patches import Polygon, Rectangle, StepPatch

    label = label_of(patch)
    if isinstance(patch, StepPatch):
        heights, ends, _ = patch.get_data()
        edges = _floats(ends)
        points: list[dict[str, Value]] = [
            {"x": (a + b) / 2, "y": v, "x_low": a, "x_high": b}
            for v, a, b in zip(_floats(heights), edges[:-1], edges[1:], strict=True)
        ]
        yield Drawn("steps", points, label)
    elif isinstance(patch, Rectangle):
        if label:  # axvspan, axhspan: ends on the axis in which it is placed, nothing on the other
            inside = patch.get_transform().contains_branch_seperately(axes.transData)
            x, y = (float(patch.get_x()), float(patch.get_y()))
            span: dict[str, Value] = {}
            if inside[0]:
                span |= {"x_low": x, "x_high": x + float(patch.get_width())}
            if inside[1]:
                span |= {"low": y, "high": y + float(patch.get_height())}
            yield Drawn("span", [span], label)
    elif type(patch) is Polygon and (label or patch.get_transform().contains_branch(axes.transData)):  # an outlined histogram
        yield Drawn("outline", _points(_floats(patch.get_xy()[:, 0]), _floats(patch.get_xy()[:, 1])), label)


def _image(image: Any) -> Iterator[Drawn]:
    pixels = np.ma.asarray(image.get_array())
    rows, columns = pixels.shape[:2]
    left, right, bottom, top = image.get_extent()
    if image.origin == "upper":
        bottom, top = top, bottom  # the first row is at the top
    x = [float(v) for v in left + (np.arange(columns) + 0.5) * (right - left) / columns]
    y = [float(v) for v in bottom + (np.arange(rows) + 0.5) * (top - bottom) / rows]
    across, up = (list(v.ravel()) for v in np.meshgrid(x, y))
    label = label_of(image)
    if pixels.ndim == 2:
        yield Drawn("image", _cells(list(map(float, across)), list(map(float, up)), _floats(pixels)), label)
        return
    for channel, name in enumerate(("red", "green", "blue")[: pixels.shape[2]]):
        cells = _cells(list(map(float, across)), list(map(float, up)), _floats(pixels[..., channel]))
        yield Drawn("image", cells, f"{label or 'image'}, {name}")


# --- in a notebook -----------------------------------------------------------------------------------------------


def register(shell: Any) -> None:
    """Make an IPython `shell` send the data along with every figure that it shows; calling it again changes nothing."""
    from IPython.core.formatters import HTMLFormatter
    from matplotlib.figure import Figure

    formatter = shell.display_formatter
    if MIME not in formatter.formatters:
        # a terminal, which shows no pictures, needs no numbers of them either
        enabled = "image/png" in formatter.active_types
        formatter.formatters[MIME] = HTMLFormatter(parent=formatter, format_type=MIME, print_method="_repr_csv_", enabled=enabled)
    formatter.formatters[MIME].for_type(Figure, lambda figure: csv_text(figure) or None)  # None: no data, no CSV
