"""A what-if panel: the numbers of its table are those of the frames, its HTML is safe, small and the same each time."""

import csv
import json

import matplotlib

matplotlib.use("Agg")
import numpy as np
import pytest
from bs4 import BeautifulSoup

from paperbook.figures.style import PALETTE, band
from paperbook.figures.whatif import BYTES, FRAMES, Control, WhatIf, ticks, what_if

X = np.array([0.01, 0.1, 1.0])
CONTROLS = {"n": Control("rows n", (10, 100), start=100), "sigma": Control("noise σ", (0.5, 1.0, 2.0), unit="Y")}


def draw(axes, frame):
    band(axes, X, frame["y"], frame["y"] / 2, frame["y"] * 2, label="risk", index=1)
    axes.plot(X[:2], frame["y"][:2] / 3, "--", color="#777777", label="floor")
    axes.axvline(frame["at"], color=PALETTE[0], label="critical")
    axes.set(xscale="log", yscale="log", xlabel=r"radius $\delta$", ylabel="risk (Y²)")


def frame(n, sigma):
    return {"y": sigma**2 / n + X**2 / 7, "at": sigma / 10}


def panel(controls=CONTROLS, frames=frame, draw=draw, **options):
    options = {"title": "Risk over the radius", "alt": "A rising line.", "readout": lambda f: {"δ_c": f["at"]}} | options
    return what_if(controls, frames, draw, **options)


def parts(made: WhatIf):
    bundle = made._repr_mimebundle_()
    return BeautifulSoup(bundle["text/html"], "html.parser"), bundle["text/csv"]


def test_the_table_holds_every_frame():
    soup, text = parts(panel())
    assert [th.text for th in soup.select("thead th")] == ["radius δ", "risk", "risk, low", "risk, high", "floor"]
    bodies = soup.select("tbody")
    said = [b.th.text for b in bodies]
    assert said[:2] == ["rows n = 10, noise σ = 0.5 Y: δ_c = 0.05", "rows n = 10, noise σ = 1 Y: δ_c = 0.1"]
    for body, (n, sigma) in zip(bodies, [(n, s) for n in (10, 100) for s in (0.5, 1, 2)], strict=True):
        shown = [[cell.text for cell in row.find_all(["th", "td"])] for row in body.find_all("tr")[1:]]
        y = frame(n, sigma)["y"]
        wanted = [[f"{x:g}", *(f"{v:.3g}" for v in (a, a / 2, 2 * a)), f"{a / 3:.3g}"] for x, a in zip(X, y, strict=True)]
        wanted[-1][-1] = ""  # the floor is drawn over two of the three x
        assert shown == wanted
        assert body["data-places"] == f"[{sigma / 10}]"
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    assert [r["series"] for r in rows[:7]] == ["risk"] * 3 + ["floor"] * 2 + ["critical", "δ_c"]
    assert rows[0] == {"n": "10", "sigma": "0.5", "series": "risk", "x": "0.01", "y": "0.0250143", "low": "0.0125071",
                       "high": "0.0500286", "value": ""}  # fmt: skip
    assert (rows[5]["x"], rows[5]["y"], rows[6]["value"]) == ("0.05", "", "0.05") and len(rows) == 6 * 7
    assert text.startswith("# Risk over the radius\n# n: rows n\n")


def test_the_first_frame_is_drawn_without_a_script():
    soup, _ = parts(panel())
    # n starts at 100, sigma at its first value: the fourth frame
    said = "rows n = 100, noise σ = 0.5 Y: δ_c = 0.05"
    assert soup.select_one("[aria-live=polite]").text == said == soup.select("tbody")[3].th.text
    assert [(i["value"], i["aria-valuetext"]) for i in soup.select("input")] == [("1", "100"), ("0", "0.5 Y")]
    plot = soup.select_one("svg[role=img]")
    names = [soup.find(id=plot[key]).text for key in ("aria-labelledby", "aria-describedby")]
    assert names == ["Risk over the radius", "A rising line."]
    shapes = {p["data-draw"]: p["d"] for p in plot.select("[data-draw]")}
    assert set(shapes) == {"band", "line", "marks", "vertical"} and all(d.startswith("M") for d in shapes.values())
    # the reference line stands where the scale says: 0.05 on a log axis
    scale, low, high, width, *_ = json.loads(soup.div["data-area"])
    at = np.log(0.05 / low) / np.log(high / low) * width
    assert scale == "log"
    assert shapes["vertical"].startswith(f"M{at:.1f} ")
    assert soup.select_one(".pb-whatif-controls").has_attr("hidden")  # dead without the script


def test_the_axes_hold_every_frame():
    def rising(axes, f):
        axes.plot(X, f["y"], label="risk")
        axes.set(xlabel="x", ylabel="y", ylim=(f["y"].min(), f["y"].max()))

    soup, _ = parts(panel(draw=rising))
    lowest, highest = frame(100, 0.5)["y"].min(), frame(10, 2.0)["y"].max()
    assert json.loads(soup.div["data-area"])[5:7] == [lowest, highest]


def test_sliders_have_names():
    soup, _ = parts(panel())
    assert [soup.find("label", attrs={"for": i["id"]}).text for i in soup.select("input")] == ["rows n", "noise σ"]


def test_a_result_table_makes_the_same_panel():
    columns = {"n": [], "sigma": [], "y": [], "at": []}
    for n in (10, 100):
        for sigma in (0.5, 1.0, 2.0):
            for y in frame(n, sigma)["y"]:
                for name, value in zip(columns, (n, sigma, y, sigma / 10), strict=True):
                    columns[name].append(value)

    def draw_rows(axes, rows):
        draw(axes, {"y": rows["y"], "at": rows["at"][0]})

    made = panel(frames=columns, draw=draw_rows, readout=lambda f: {"δ_c": f["at"][0]})
    assert made._repr_mimebundle_() == panel()._repr_mimebundle_()


def test_one_control_is_enough_and_words_are_values():
    made = panel({"kind": Control("box", ("good", "bad"))}, lambda kind: frame(10 if kind == "good" else 100, 1.0), readout=None)
    soup, text = parts(made)
    assert [b.th.text for b in soup.select("tbody")] == ["box = good", "box = bad"] and "\ngood,risk,0.01," in text
    assert repr(made) == "What if: Risk over the radius (2 frames)"


def test_labels_are_escaped():
    evil = '<script>alert("1")</script> & \'"'

    def draw_evil(axes, f):
        axes.plot(X, f["y"], label=evil)
        axes.set(xlabel=evil, ylabel=evil)

    controls = {"n": Control(evil, (1, 2), unit=evil), "sigma": Control("σ", (evil, "b"))}
    made = panel(controls, lambda n, sigma: frame(n, 1.0), draw_evil, title=evil, alt=evil, readout=lambda f: {evil: evil})
    html = made._repr_mimebundle_()["text/html"]
    assert "<script" not in html and "alert(&quot;1&quot;)" in html
    soup = BeautifulSoup(html, "html.parser")
    assert soup.select_one("thead th").text == evil and soup.select_one("label").text == evil
    assert {tag.name for tag in soup.find_all()} <= {
        "div", "label", "input", "output", "p", "ul", "li", "svg", "path", "g", "text", "title", "desc", "details", "summary",
        "table", "thead", "tbody", "tr", "th", "td", "span"}  # fmt: skip


def test_the_same_numbers_make_the_same_bytes_and_stay_small():
    first, second = (panel()._repr_mimebundle_() for _ in range(2))
    assert first == second and list(first) == ["text/html", "text/csv"]
    large = panel({"n": Control("n", range(1, 7)), "sigma": Control("σ", (1.0, 2.0, 3.0, 4.0))})
    assert len(large._repr_mimebundle_()["text/html"].encode()) < BYTES / 2


def missing(n, sigma):
    return None if n == 100 else frame(n, sigma)


def without_label(axes, f):
    draw(axes, f)
    axes.plot(X, X)


def other(axes, f):
    draw(axes, f)
    axes.scatter(X, X, label="dots")


def words(axes, f):
    draw(axes, f)
    axes.text(1, 1, "here")


def linear(axes, f):
    draw(axes, f)
    axes.set(xlabel="")


def uneven(axes, f):
    axes.plot(X, f["y"], label=f"at {f['at']}")
    axes.set(xlabel="x", ylabel="y")


def twice(axes, f):
    draw(axes, f)
    axes.plot(X, X, label="risk")


def one_line(axes, f):
    axes.plot(X, X, label="a")
    axes.set(xlabel="x", ylabel="y")


FEW = {"n": [10], "sigma": [0.5], "y": [1.0], "at": [0.1]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"controls": {}}, "controls: expected one or two, got 0"),
        ({"controls": {"n": Control("n", ())}}, "controls: n: expected two or more different values, got \\[\\]"),
        ({"controls": {"n": Control("n", (1, 1))}}, "two or more different values"),
        ({"controls": {"n": Control("n", (1, 2), start=3)}}, "n: start: expected one of \\[1, 2\\], got 3"),
        ({"controls": {"n": Control("n", range(FRAMES)), "sigma": Control("s", (1, 2))}},
         f"at most {FRAMES} frames, got {2 * FRAMES}"),
        ({"frames": missing}, "frames: no frame for n=100, sigma=0.5: the function returned None"),
        ({"frames": FEW, "draw": one_line, "readout": None}, "frames: no rows for n=10, sigma=1"),
        ({"frames": {"n": [1]}}, "expected the columns n, sigma, got n"),
        ({"frames": FEW | {"y": [1.0, 2.0]}}, "columns of one length"),
        ({"frames": lambda n, sigma: frame(n, sigma) | {"y": X * np.nan}},
         "draw: n=10, sigma=0.5: risk: expected a finite number, got nan"),
        ({"frames": lambda n, sigma: frame(n, sigma) | {"y": X - 0.01}},
         "risk: y: expected numbers above 0 on a log scale, got 0.0"),
        ({"readout": lambda f: {"δ_c": np.nan}}, "readout: n=10, sigma=0.5: δ_c: expected a finite number, got nan"),
        ({"readout": lambda f: {"δ_c": None}}, "δ_c: expected a number, got None"),
        ({"draw": without_label}, "expected a label for each line, got 1 without"),
        ({"draw": other}, "a panel holds lines, bands and reference lines, got points"),
        ({"draw": words}, "a panel holds no text \\('here'\\)"),
        ({"draw": linear}, "x: expected a label with its unit, got none"),
        ({"draw": uneven}, "expected the series of the first frame"),
        ({"draw": twice}, "expected a label of its own for each series"),
        ({"draw": lambda axes, f: axes.set(xlabel="x", ylabel="y")}, "expected at least one line, got nothing"),
        ({"title": " "}, "title: expected a sentence, got ' '"),
        ({"alt": None}, "alt: expected a sentence, got None"),
        ({"digits": 9}, "digits: expected a number from 2 to 6, got 9"),
    ],
)  # fmt: skip
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        panel(**change)


def test_a_heavy_panel_is_refused():
    x = np.linspace(1, 2, 1000)

    def long(axes, f):
        axes.plot(x, x, label="long")
        axes.set(xlabel="x", ylabel="y")

    with pytest.raises(ValueError, match=f"at most {BYTES // 1000} kB; take fewer"):
        panel(draw=long)


@pytest.mark.parametrize(
    ("scale", "low", "high", "texts"),
    [
        ("linear", -1.0, 1.0, ["−1", "−0.5", "0", "0.5", "1"]),
        ("log", 0.003, 0.45, ["0.005", "0.01", "0.02", "0.05", "0.1", "0.2"]),
        ("log", 1e-5, 10.0, ["10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰", "10¹"]),
        ("log", 1e-4, 3e-4, ["10⁻⁴", "2·10⁻⁴"]),
    ],
)
def test_ticks(scale, low, high, texts):
    assert [text for _, text in ticks(scale, low, high)] == texts
