"""One stylesheet of what the book uses: what is kept, what goes, and which glyphs remain."""

import io

import pytest
from fontTools.ttLib import TTFont

from paperbook.press.mathjax import FONTS
from paperbook.press.site import weight
from paperbook.study import paths

MATHJAX = paths.root() / "vendor" / "mathjax"


@pytest.fixture
def used():
    return weight.Used.of(['<div class="a b" id="c"><mjx-mfrac></mjx-mfrac></div>'], ["element.classList.add('made-by-script')"])


@pytest.mark.parametrize(
    ("selector", "kept"),
    [(".a", True), (".gone", False), (".a .gone", False), (".a:not(.gone)", True), (".made-by-script > p", True), ("p", True),
     ("mjx-mfrac > *", True), ("mjx-msqrt", False), (r".w-50\%", True), ("[data-x='.gone'] .a", True), (".a:is(.gone, .b)", True),
     ("#anything", True), ("html[data-theme=dark] .a", True)],
)  # fmt: skip
def test_a_rule_stays_if_it_can_match(used, selector, kept):
    assert used.wants(selector) is kept
    assert bool(weight.pruned(f"{selector} {{ color: red; }}", used)) is kept


def test_lists_lose_the_selectors_that_match_nothing(used):
    assert weight.pruned(".a, .gone, .b:not(.x, .y) { color: red }", used) == ".a,.b:not(.x, .y){color: red}\n"


def test_media_queries_are_looked_into(used):
    css = "@media print { .a { color: red } .gone { color: blue } } @media screen { .gone { color: blue } }"
    out = weight.pruned(css, used)
    assert "@media print{" in out and "red" in out and "blue" not in out and "screen" not in out


def test_frames_faces_and_variables_stay(used):
    css = "@keyframes spin { to { rotate: 1turn } } @font-face { font-family: X; src: url(x.woff) } :root { --x: 1 }"
    out = weight.pruned(css, used)
    assert "@keyframes" in out and "@font-face" in out and "--x" in out


def test_braces_in_strings_do_not_end_a_rule(used):
    css = '.a::before { content: "} .gone {"; background: url("data:image/svg+xml,%3csvg{}%3e") } .b { color: red }'
    out = weight.pruned(css, used)
    assert 'content: "} .gone {"' in out and out.count("\n") == 2


def test_a_broken_stylesheet_is_an_error(used):
    with pytest.raises(ValueError, match="stylesheet"):
        weight.pruned(".a { color: red } }", used)


CSS = """
mjx-c.mjx-c1D465.TEX-I::before { padding: 0; content: "x"; }
mjx-c.mjx-c2B::before { content: "+"; }
mjx-stretchy-v.mjx-c28 mjx-ext mjx-c::before { content: "\\239C"; }
.fa-download { --fa: "\\f019"; }
.plain::before { content: "a"; }
.admonition { --pst-icon-note: "\\f05a"; color: red }
"""


@pytest.mark.parametrize(
    ("family", "expected"),
    [("MJXTEX", {0x2B, 0x239C}), ("MJXTEX-I", {ord("x")}), ("MJXTEX-S4", {0x239C}), ("MJXTEX-B", set()),
     ("Font Awesome 6 Free", {0xF019, 0xF05A}), ("Other", {0xF019, 0xF05A, ord("a")})],
)  # fmt: skip
def test_each_font_gets_the_glyphs_that_ask_for_it(family, expected):
    assert weight.characters(CSS, family) == expected


def test_a_cut_font_draws_the_same_glyph():
    path = MATHJAX / FONTS / "MathJax_Math-Italic.woff"
    cut = weight.subset(path, {ord("x"), 0x10FFFF})
    assert len(cut) < path.stat().st_size / 4
    with TTFont(io.BytesIO(cut)) as new, TTFont(path) as old:
        assert set(new.getBestCmap()) == {ord("x")}
        width = [font["hmtx"][font.getBestCmap()[ord("x")]][0] for font in (new, old)]
        assert width[0] == width[1]
    assert weight.subset(path, {0x10FFFF}) == b""


def test_fonts_are_inside_or_beside(tmp_path):
    css = (
        "@font-face { font-family: MJXTEX-I; src: url(\"maths/MathJax_Math-Italic.woff\") format(\"woff\"); }\n"
        "@font-face { font-family: MJXTEX-B; src: url(\"maths/MathJax_Main-Bold.woff\") format(\"woff\"); }\n"
        "@font-face { font-family: MJXZERO; src: url(\"maths/MathJax_Zero.woff\") format(\"woff\"); }\n" + CSS
    )  # fmt: skip
    out = weight.with_fonts(css, tmp_path, MATHJAX)
    assert out.count("@font-face") == 2  # bold has no glyph to draw, the font of no height stays
    assert out.count("data:font/woff;base64,") == 2
    with pytest.raises(FileNotFoundError, match="Nowhere"):
        weight.with_fonts("@font-face { font-family: MJXTEX-I; src: url(maths/Nowhere.woff) }", tmp_path, MATHJAX)


def test_addresses_follow_the_stylesheet():
    css = "a { b: url(../vendor/x.woff2); c: url('img.svg'); d: url(data:x); e: url(#f) }"
    out = weight._rebased(css, "styles")
    assert "url(vendor/x.woff2)" in out and "url('styles/img.svg')" in out and "url(data:x)" in out and "url(#f)" in out


def test_an_incremental_build_knows_its_stylesheet(used):
    same = weight.Used(set(used.words), set(used.elements))
    assert weight._version(["a"], used) == weight._version(["a"], same)
    same.words.add("new")
    assert weight._version(["a"], used) != weight._version(["a"], same)


def test_imports_are_read_in_place(tmp_path):
    (tmp_path / "styles").mkdir()
    (tmp_path / "basic.css").write_text("a { b: url(img.svg) }")
    css = '/* c */\n@import "../basic.css";\n@import url("../basic.css");\np { q: url(x.png) }'
    (tmp_path / "styles" / "theme.css").write_text(css)
    out = weight._read(tmp_path, "styles/theme.css")
    assert "@import" not in out and out.count("url(img.svg)") == 2 and "url(styles/x.png)" in out
