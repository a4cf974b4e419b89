"""Nothing for axe to find on one page of each type, at three widths and in both themes; and the keyboard reaches everything."""

import importlib.util
from pathlib import Path

import pytest
from browse import scroll_through

# one of each type: what a reader lands on, a chapter's overview, theory, exercises, a table of claims, prose with commands,
# references, glossary, search, and what Sphinx generates
TYPES = ["book/intro.html", "overview", "theory", "exercises", "book/ledger.html", "book/costs.html", "book/full-scale.html",
         "book/bibliography.html", "book/metrics.html", "reference", "search.html?q=risk", "genindex.html"]  # fmt: skip


@pytest.fixture(scope="session")
def axe():
    """Source of axe-core, as the package ships it."""
    spec = importlib.util.find_spec("axe_playwright_python")
    return next(Path(spec.origin).parent.rglob("axe.min.js")).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def page_of(soups, chapters, heaviest):
    """File of a type."""
    named = {
        "overview": next(name for name in chapters if name.endswith("0-overview.html")),
        "theory": heaviest,
        "exercises": next(name for name in chapters if soups[name].select(".exercise")),
        "reference": next(name for name in soups if name.startswith("book/api/") and soups[name].select("dl.py")),
    }
    return lambda kind: named.get(kind, kind)


@pytest.mark.parametrize("kind", TYPES)
def test_axe_finds_nothing(reader, page_of, axe, kind):
    page = reader(page_of(kind))
    page.evaluate(axe)
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(f"document.documentElement.dataset.theme === {scheme!r}")
        for width in (390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_timeout(300)  # the script looks anew at what is wide
            scroll_through(page)
            for v in page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]:
                node = v["nodes"][0]
                found.append((scheme, width, v["id"], len(v["nodes"]), node["html"][:120], node["failureSummary"][:200]))
    assert not found


@pytest.fixture(scope="module")
def reached(browser, site, heaviest):
    """Everything the tab key stops at on the page with the most formulas, on a phone, in order."""
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{site}/{heaviest}", wait_until="load")
    stops = []
    for _ in range(600):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
                 const e = document.activeElement;
                 if (!e || e === document.body) return null;
                 e.dataset.stop ??= String(Math.random());
                 const style = getComputedStyle(e);
                 return {id: e.dataset.stop, tag: e.tagName.toLowerCase(), text: e.textContent.trim().slice(0, 40),
                         outline: style.outlineStyle + style.boxShadow};
               }"""
        )
        if stop is None or (stops and stop["id"] == stops[0]["id"]):
            break
        stops.append(stop)
    missed = page.evaluate(
        """() => [...document.querySelectorAll('.bd-article :is(a[href], button, summary, input)')]
                  .filter(e => !e.dataset.stop && e.tabIndex >= 0 && e.checkVisibility({checkVisibilityCSS: true}))
                  .filter(e => !e.closest('details:not([open]) > :not(summary)'))
                  .map(e => e.outerHTML.slice(0, 120))"""
    )
    context.close()
    return stops, missed


def test_tab_reaches_every_control(reached):
    stops, missed = reached
    assert "Skip to main content" in stops[0]["text"]
    assert len(stops) > 40 and not missed


def test_focus_is_seen(reached):
    stops, _ = reached
    assert not [stop for stop in stops if stop["outline"] == "nonenone"]


def test_a_wide_formula_takes_the_keyboard(reached):
    stops, _ = reached
    assert any(stop["tag"] == "mjx-container" for stop in stops)


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_a_proof_opens_by_keyboard(reader, soups, chapters, key):
    name = next(name for name in chapters if soups[name].select(".admonition.dropdown"))
    page = reader(name)
    proof = page.locator(".admonition.dropdown").first
    button = proof.locator("button.toggle-button, summary").first
    before = proof.bounding_box()["height"]
    button.focus()
    page.keyboard.press(key)
    page.wait_for_timeout(400)
    assert proof.bounding_box()["height"] > before + 20


def test_the_theme_button_and_the_menu_take_the_keyboard(reader, chapters):
    page = reader(chapters[0])
    menu = page.locator("button[aria-label='Download this page']").first
    menu.focus()
    page.keyboard.press("Enter")
    assert page.locator(".dropdown-menu.show a").count() >= 2
