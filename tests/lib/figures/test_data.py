"""The CSV of a figure holds what was drawn, under the names of the legend, and nothing that only decorates."""

import csv
import io

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest

from paperbook.figures.data import ROWS, Row, csv_text, number, plain, table
from paperbook.figures.style import band, panels


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def rows_of(text):
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def test_lines_with_their_bands_on_log_axes():
    figure, axes = panels()
    band(axes, [1, 10, 100], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5], label="ours", index=0)
    band(axes, [1, 10, 100], [4.0, 5.0, 6.0], [3.0, 4.0, 5.0], [5.0, 6.0, 7.0], label="theirs", index=1)
    band(axes, [1, 10], [1.0 / 3, 2e-9], label="bare", index=2)
    axes.set(xscale="log", xlabel=r"radius $\delta_c$ (units of Y)", ylabel="risk", title="# one")
    text = csv_text(figure)
    assert text.splitlines()[:2] == [
        "# panel 1: no. one; x: radius δ_c (units of Y) (log scale); y: risk",
        "panel,series,x,y,low,high",
    ]
    assert text.splitlines()[2:] == [
        "1,ours,1,1,0.5,1.5", "1,ours,10,2,1.5,2.5", "1,ours,100,3,2.5,3.5",
        "1,theirs,1,4,3,5", "1,theirs,10,5,4,6", "1,theirs,100,6,5,7",
        "1,bare,1,0.333333,,", "1,bare,10,2e-09,,",
    ]  # fmt: skip


def test_a_band_belongs_to_the_line_it_was_drawn_for():
    # same colour, same x: only one of the two lines lies inside
    figure, axes = panels()
    x = np.arange(5.0)
    axes.plot(x, x + 10, color="C0", label="far")
    axes.plot(x, x, color="C0", ls="--", label="near")
    axes.fill_between(x, x - 1, x + 1, color="C0", alpha=0.2)
    found = table(figure)
    assert [r.low for r in found if r.series == "near"] == list(x - 1) and {r.low for r in found if r.series == "far"} == {None}


def test_a_band_of_another_colour_belongs_to_no_line():
    figure, axes = panels()
    axes.plot([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], color="C0", label="line")
    axes.fill_between([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [2.0, 3.0, 4.0], color="C1")
    assert [(r.series, r.low) for r in table(figure)[2:5]] == [("line", None), ("band 1", 0.0), ("band 1", 1.0)]


def test_a_band_without_a_line_stands_for_itself():
    figure, axes = panels()
    axes.plot([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], color="C0", label="line")
    axes.fill_between([0.5, 1.5], [0.0, 0.0], [1.0, 2.0], color="C1", label="out of reach")
    axes.fill_between([0.5, 1.5], [5.0, 5.0], [6.0, 7.0], color="C0")
    assert [r for r in table(figure) if r.series != "line"] == [
        Row(1, "out of reach", 0.5, None, 0.0, 1.0), Row(1, "out of reach", 1.5, None, 0.0, 2.0),
        Row(1, "line (band)", 0.5, None, 5.0, 6.0), Row(1, "line (band)", 1.5, None, 5.0, 7.0),
    ]  # fmt: skip


def test_error_bars_in_both_directions():
    figure, axes = panels()
    axes.errorbar([1, 2], [3, 4], yerr=[[0.5, 0.25], [1, 2]], label="up")
    axes.errorbar([1, 2], [3, 4], xerr=0.5, label="across")
    axes.errorbar([1, 2], [3, 4], xerr=0.5, yerr=1, fmt="none", label="both, no centre")
    assert table(figure) == [
        Row(1, "up", 1.0, 3.0, 2.5, 4.0), Row(1, "up", 2.0, 4.0, 3.75, 6.0),
        Row(1, "across", 1.0, 3.0, x_low=0.5, x_high=1.5), Row(1, "across", 2.0, 4.0, x_low=1.5, x_high=2.5),
        Row(1, "both, no centre", 1.0, None, 2.0, 4.0, 0.5, 1.5), Row(1, "both, no centre", 2.0, None, 3.0, 5.0, 1.5, 2.5),
    ]  # fmt: skip


def test_bars_take_the_names_of_their_ticks():
    figure, axes = panels()
    for i, name in enumerate(("ours", "theirs")):
        axes.bar(np.arange(2) + 0.4 * i - 0.2, [1.0, 2.0], 0.4, yerr=[0.1, 0.2], label=name)
    axes.set_xticks([0, 1], ["small $n$", "large $n$"])
    found = table(figure)
    assert [(r.series, r.x, r.y) for r in found] == [
        ("ours", "small n", 1.0), ("ours", "large n", 2.0), ("theirs", "small n", 1.0), ("theirs", "large n", 2.0)]  # fmt: skip
    assert [(r.low, r.high) for r in found[:2]] == [(0.9, 1.1), (1.8, 2.2)]


def test_strings_as_x_are_categories_and_numbers_as_tick_labels_are_not():
    figure, axes = panels(columns=3)
    axes[0].plot(["a", "b"], [1.0, 2.0], label="s")
    axes[1].plot([1.0, 2.0], [1.0, 2.0], label="s")
    axes[1].set_xticks([1, 2], ["1", "2"])
    axes[2].plot([500.0, 2000.0], [1.0, 2.0], label="s")
    axes[2].set_xticks([500, 2000], ["few", "many"])  # named places on an axis of numbers
    assert [r.x for r in table(figure)] == ["a", "b", 1.0, 2.0, 500.0, 2000.0]


def test_horizontal_bars_stacks_and_histograms():
    figure, axes = panels(columns=3)
    axes[0].barh(["a", "b"], [1.0, 2.0], xerr=0.5, label="h")
    axes[1].bar([1, 2], [1.0, 1.0], 1.0, bottom=[2.0, 3.0], label="top")

    axes[2].hist([0.0, 1.0, 1.0, 2.0], bins=2, label="counts")
    assert table(figure) == [
        Row(1, "h", 1.0, "a", x_low=0.5, x_high=1.5), Row(1, "h", 2.0, "b", x_low=1.5, x_high=2.5),
        Row(2, "top", 1.0, 1.0, 2.0, 3.0, 0.5, 1.5), Row(2, "top", 2.0, 1.0, 3.0, 4.0, 1.5, 2.5),
        Row(3, "counts", 0.5, 1.0, x_low=0.0, x_high=1.0), Row(3, "counts", 1.5, 3.0, x_low=1.0, x_high=2.0),
    ]  # fmt: skip


def test_scatter_steps_stems_segments():
    figure, axes = panels()
    axes.scatter([1, 2], [3, 4], c=[0.1, 0.2], label="dots")
    axes.step([0, 1, 2], [2, 3, 4], label="step")
    axes.stem([1, 2], [3, 4], label="stem")
    axes.hlines([0, 1], [2, 3], [4, 5], label="intervals")
    axes.stairs([7.0], [0.0, 1.0], label="stairs")
    by_name = {}
    for row in table(figure):
        by_name.setdefault(row.series, []).append((row.x, row.y, row.x_low, row.value))
    assert by_name == {
        "dots": [(1.0, 3.0, None, 0.1), (2.0, 4.0, None, 0.2)],
        "step": [(0.0, 2.0, None, None), (1.0, 3.0, None, None), (2.0, 4.0, None, None)],
        "stem": [(1.0, 3.0, None, None), (2.0, 4.0, None, None)],
        "intervals": [(None, 0.0, 2.0, None), (None, 1.0, 3.0, None)],
        "stairs": [(0.5, 7.0, 0.0, None)],
    }


@pytest.mark.parametrize("origin", ["upper", "lower"])
def test_images_and_heat_maps_are_cells(origin):
    figure, axes = panels(columns=2)
    axes[0].imshow([[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]], origin=origin)
    axes[0].set_yticks([0, 1], ["first row", "second row"])
    axes[1].pcolormesh([0, 1, 2], [0, 1], [[8.0, 9.0]])
    found = rows_of(csv_text(figure))
    assert [(r["x"], r["y"], r["value"]) for r in found] == [
        ("0", "first row", "1"), ("1", "first row", "2"), ("2", "first row", "3"),
        ("0", "second row", "4"), ("1", "second row", "nan"), ("2", "second row", "6"),
        ("0.5", "0.5", "8"), ("1.5", "0.5", "9"),
    ]  # fmt: skip


def test_colour_bars_add_nothing():
    figure, axes = panels()
    figure.colorbar(axes.imshow([[1.0, 2.0]], extent=(0, 4, 0, 1)))
    assert [(r.panel, r.x, r.value) for r in table(figure)] == [(1, 1.0, 1.0), (1, 3.0, 2.0)]


def test_what_only_decorates_is_left_out_unless_it_has_a_label():
    figure, axes = panels()
    axes.plot([0, 1, 2], [0, 1, 2], label="data")
    axes.axvline(1), axes.axhline(1), axes.axvspan(0, 1), axes.text(0, 0, "text"), axes.axline((0, 0), slope=1)
    axes.plot([0, 2], [0, 2], ":"), axes.vlines([1], 0, 1)
    axes.annotate("here", (1, 1), xytext=(2, 2), arrowprops={})
    assert {r.series for r in table(figure)} == {"data"}
    axes.axvline(0.5, label="critical"), axes.axhline(3, label="best"), axes.axvspan(0, 1, label="grey zone")
    assert table(figure)[3:] == [
        Row(1, "critical", 0.5), Row(1, "best", None, 3.0), Row(1, "grey zone", x_low=0.0, x_high=1.0)]  # fmt: skip


def test_an_unlabelled_line_has_the_name_of_its_twin_in_another_panel():
    figure, axes = panels(columns=2)
    axes[0].plot([1, 2, 3], [1, 2, 3], color="C0", marker="o", label="ours")
    axes[1].plot([1, 2, 3], [4, 5, 6], color="C0", marker="o")
    axes[1].plot([1, 2, 3], [4, 5, 6], color="C0", marker="s")
    assert [r.series for r in table(figure)[3::3]] == ["ours", "line 1"]


def test_missing_values_stay_and_say_so():
    figure, axes = panels()
    axes.plot([1, 2, 3], [1.0, np.nan, -0.0], label="gap")
    axes.plot([1, 2], np.ma.masked_array([1.0, 2.0], [True, False]), label="masked")
    assert [r["y"] for r in rows_of(csv_text(figure))] == ["1", "nan", "0", "nan", "2"]


def test_a_figure_without_data_has_no_csv():
    figure, axes = panels()
    axes.text(0, 0, "only words")
    axes.axvline(1)
    assert table(figure) == [] and csv_text(figure) == ""


def test_long_series_are_thinned_and_the_file_says_so():
    figure, axes = panels()
    axes.plot(np.arange(3.0 * ROWS), label="long")
    axes.plot([0.0, 1.0, 2.0], label="short")
    text = csv_text(figure)
    found = rows_of(text)
    assert len(found) == ROWS // 2 + 3 and f"# panel 1, long: {ROWS // 2} of {3 * ROWS} points" in text
    assert found[0]["x"] == "0" and found[ROWS // 2 - 1]["x"] == str(3 * ROWS - 1)
    assert len(table(figure)) == 3 * ROWS + 3  # the rows themselves are whole


def test_the_same_figure_has_the_same_text():
    def draw():
        figure, axes = panels(columns=2)
        band(axes[0], [1, 2], [1.0, 2.0], [0.5, 1.0], [2.0, 3.0], label="a, \"b\"", index=0)
        axes[1].contour(np.outer(np.arange(4), np.arange(4)), levels=[2, 4])
        return figure

    first = draw()
    text = csv_text(first)
    first.savefig(io.BytesIO())
    assert csv_text(first) == text == csv_text(draw()) and '"a, ""b"""' in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\mathrm{risk} \leq \Delta_n$, $\lambda$", "risk ≤ Δ_n, λ"),
        (r"$\varepsilon^{2}$", "ε^2"),
        ("no maths\nat all", "no maths at all"),
        (r"$\unknown x$", "unknown x"),
    ],
)
def test_labels_lose_their_mathematics(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize(("value", "text"), [(None, ""), (1 / 3, "0.333333"), (float("inf"), "inf"), ("a", "a"), (1e10, "1e+10")])
def test_numbers_have_six_digits(value, text):
    assert number(value) == text


def test_bars_of_categories_have_no_edges():
    figure, axes = panels()
    axes.bar(["a", "b"], [1.0, 2.0], label="v")
    assert table(figure) == [Row(1, "v", "a", 1.0), Row(1, "v", "b", 2.0)]


def test_a_notebook_sends_the_data_of_each_figure_along(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    cells = [
        "import matplotlib.pyplot as plt\nfrom paperbook.figures.style import panels",
        "figure, axes = panels()\naxes.plot([1, 2, 3], [4, 5, 6], label='ours')\nplt.show()",
        "figure, axes = panels()\naxes.text(0, 0, 'words')\nplt.show()",
        "plt.plot([1.0], [2.0], 'o', label='bare pyplot')\nplt.show()",
        "import io\nfrom paperbook.study.show import glue\nfigure, axes = panels()\naxes.plot([1, 2, 3], label='glued')\n"
        "glue('g', figure)\nplt.close(figure)",
    ]
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbclient.NotebookClient(nb, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = [[sorted(output.get("data", {})) for output in cell.outputs] for cell in nb.cells]
    both = ["image/png", "text/csv", "text/plain"]
    prefix = "application/papermill.record/"
    assert kinds == [[], [both], [["image/png", "text/plain"]], [both], [sorted(prefix + kind for kind in both)]]
    assert rows_of(nb.cells[1].outputs[0].data["text/csv"])[2]["y"] == "6"
