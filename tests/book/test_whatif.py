"""What-if panels and figure data in the built book: by keyboard, on a phone, without scripts."""

import csv
import json
import re

import pytest
from bs4 import BeautifulSoup

PAGE = "book/pages/safe-residual/1-trust-or-learn.html"
PANEL = ".pb-whatif"


@pytest.fixture
def opened(site, browser):
    """The page with a panel on a phone; what went wrong on it is collected."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.goto(f"{site}/{PAGE}", wait_until="load")
    yield page
    context.close()


def state(page):
    return page.evaluate(
        """() => ({
             said: document.querySelector('.pb-whatif-readout').textContent,
             curves: [...document.querySelectorAll('.pb-whatif [data-draw]')].map(p => p.getAttribute('d')),
             values: [...document.querySelectorAll('.pb-whatif output')].map(o => o.textContent),
             spoken: [...document.querySelectorAll('.pb-whatif input')].map(i => i.getAttribute('aria-valuetext')),
           })"""
    )


def test_the_keyboard_moves_slider_curves_and_read_out(opened):
    first = state(opened)
    assert "n = 2000" in first["said"] and first["values"] == first["spoken"] == ["2000", "0.5 Y"]
    opened.locator(f"{PANEL} summary").focus()
    opened.locator(f"{PANEL} input").first.focus()
    opened.keyboard.press("ArrowRight")
    second = state(opened)
    assert second["values"] == second["spoken"] == ["4000", "0.5 Y"] and "n = 4000" in second["said"]
    assert first["said"].split("δ_c = ")[1] > second["said"].split("δ_c = ")[1]
    changed = [a != b for a, b in zip(first["curves"], second["curves"], strict=True)]
    assert sum(changed) >= 6  # all but trust, which costs the same everywhere
    opened.keyboard.press("Tab")
    opened.keyboard.press("End")
    assert state(opened)["values"] == ["4000", "2 Y"]
    opened.keyboard.press("Home"), opened.keyboard.press("ArrowRight")
    opened.keyboard.press("Shift+Tab"), opened.keyboard.press("ArrowLeft")
    assert state(opened) == first and not opened.problems


def test_the_curves_are_the_numbers_of_the_table(opened):
    # the drawn points, taken back to values, in a frame that is not the first
    opened.locator(f"{PANEL} input").first.focus()
    opened.keyboard.press("Home")
    seen = opened.evaluate(
        """() => { const panel = document.querySelector('.pb-whatif'), cells = row => [...row.cells].map(c => c.textContent);
             return {area: panel.dataset.area, d: panel.querySelector('[data-draw=line][data-columns="2"]').getAttribute('d'),
                     said: panel.querySelector('.pb-whatif-readout').textContent,
                     rows: [...panel.querySelectorAll('tbody')].map(body => [...body.rows].map(cells))} }"""
    )
    (_, x0, x1, width, _, y0, y1, height) = json.loads(seen["area"])
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", seen["d"])[1:]]
    (rows,) = [rows[1:] for rows in seen["rows"] if rows[0] == [seen["said"]]]
    assert len(points) == len(rows) == 14
    for (x, y), row in zip(points, rows, strict=True):
        assert x0 * (x1 / x0) ** (x / width) == pytest.approx(float(row[0]), rel=0.002)
        assert y1 * (y0 / y1) ** (y / height) == pytest.approx(float(row[2]), rel=0.003)


def test_the_table_holds_the_same_numbers_as_the_csv(html):
    soup = BeautifulSoup((html / PAGE).read_text(encoding="utf-8"), "html.parser")
    figure = soup.select_one(PANEL).find_parent("figure")
    link = figure.select_one("figcaption a.pb-data")
    text = ((html / PAGE).parent / link["href"]).resolve().read_text(encoding="utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    names = [th.text for th in figure.select("thead th")][1:]
    by_series = {name: [f"{float(r['y']):.3g}" for r in rows if r["series"] == name] for name in names}
    table = {name: [row.find_all("td")[i].text for row in figure.select("tbody tr") if row.td] for i, name in enumerate(names)}
    assert table == by_series and len(table["safe rule"]) == 24 * 14


def test_without_scripts_a_reader_has_the_first_frame_and_the_table(site, browser, opened):
    drawn = state(opened)
    context = browser.new_context(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site}/{PAGE}", wait_until="load")
    page.locator(PANEL).scroll_into_view_if_needed()  # a browser lays out no section that nobody looks at
    page.wait_for_timeout(300)
    assert not page.locator(f"{PANEL} .pb-whatif-controls").is_visible()
    assert page.locator(f"{PANEL} svg[role=img]").is_visible() and page.locator(f"{PANEL} .pb-whatif-readout").is_visible()
    page.locator(f"{PANEL} summary").click()
    assert page.locator(f"{PANEL} table").is_visible()
    static = page.locator(PANEL).inner_html()
    context.close()
    assert re.findall(r'data-draw="line"[^>]* d="([^"]+)"', static) and drawn["said"] in static
    assert drawn["curves"] == re.findall(r'<path data-draw[^>]*? d="([^"]+)"', static)  # the script draws what was there


def test_a_panel_fits_a_phone_and_its_sliders_a_finger(opened):
    opened.locator(f"{PANEL} summary").click()
    assert opened.evaluate("document.scrollingElement.scrollWidth") == 390
    wide = opened.evaluate(
        "[...document.querySelectorAll('.pb-whatif > *')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    )
    boxes = [slider.bounding_box() for slider in opened.locator(f"{PANEL} input").all()]
    assert not wide and all(box["height"] >= 44 and box["width"] >= 90 for box in boxes)
    letters = opened.evaluate("document.querySelector('.pb-whatif-plot text').getBoundingClientRect().height")
    assert letters >= 10


def test_it_works_from_a_file(html, browser):
    page = browser.new_page()
    page.goto((html / PAGE).as_uri(), wait_until="load")
    page.locator(f"{PANEL} input").first.focus()
    page.keyboard.press("Home")
    assert "n = 250" in state(page)["said"]
    page.close()


def test_only_pages_with_a_panel_load_its_script(html):
    for path in sorted((html / "book").rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        assert ("whatif.js" in text) == ('class="pb-whatif"' in text), path


def test_every_figure_of_an_executed_page_offers_its_data(html):
    seen = 0
    for path in sorted((html / "book" / "pages").rglob("*.html")):
        soup = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
        for figure in soup.select(".cell_output figure"):
            (link,) = figure.select("figcaption a.pb-data")
            label = link["aria-label"]
            assert link.text == "data (CSV)" and label.startswith("data (CSV) of the figure: ") and len(label) > 45
            target = (path.parent / link["href"]).resolve()
            lines = [line for line in target.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
            assert target.is_relative_to(html / "_data") and len(lines) >= 2 and "," in lines[0]
            seen += 1
    assert seen >= 13
