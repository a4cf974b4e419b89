"""Mathematics typeset at build time: what comes out, what is refused, and that a mistake fails the build."""

import re

import pytest
from docutils import nodes

from paperbook.press.site import maths
from paperbook.study import paths

MACROS = {"R": r"\mathbb{R}", "norm": [r"\left\lVert #1 \right\rVert", 1]}


@pytest.fixture(scope="module")
def typesetter():
    return maths.Typesetter(paths.root() / "vendor" / "mathjax", MACROS)


def test_shape_and_meaning_stand_together(typesetter):
    html = typesetter.html(r"\frac{x^2}{\norm{y}}", display=True)
    assert html.count("<mjx-container") == html.count("</mjx-container>") == 1
    assert 'display="true"' in html and "mjx-mfrac" in html
    spoken = re.search(r"<mjx-assistive-mml>(<math.*</math>)</mjx-assistive-mml>", html)[1]
    assert "<mfrac>" in spoken and "<mi>y</mi>" in spoken and "class=" not in spoken
    assert re.search(r"<mjx-math[^>]*aria-hidden", html)  # a screen reader reads the MathML, once


def test_inline_is_not_displayed(typesetter):
    assert 'display="true"' not in typesetter.html("x", display=False)


def test_macros_with_and_without_arguments(typesetter):
    assert typesetter.html(r"\R", display=False) == typesetter.html(r"\mathbb{R}", display=False)
    assert typesetter.html(r"\norm{a}", False) == typesetter.html(r"\left\lVert a \right\rVert", False)


@pytest.mark.parametrize(
    ("tex", "message"),
    [(r"\nosuchmacro x", "nosuchmacro"), (r"\frac{1", "brace"), (r"\begin{aligned} x", "aligned"), ("x_1_2", "subscript"),
     (r"\left( x", "right"), (r"\require{physics}", "require"), (r"\begin{nosuch}x\end{nosuch}", "nosuch")],
)  # fmt: skip
def test_what_mathjax_does_not_know_is_an_error(typesetter, tex, message):
    with pytest.raises(maths.MathsError, match=message):
        typesetter.html(tex, display=True)


def test_after_an_error_it_goes_on(typesetter):
    before = typesetter.html("a+b", False)
    with pytest.raises(maths.MathsError):
        typesetter.html(r"\broken{", False)
    assert typesetter.html("a+b", False) == before
    assert typesetter.html("c+d", False).count("mjx-mo") > 0


def test_markup_in_tex_stays_text(typesetter):
    html = typesetter.html(r"\text{<script>alert(1)</script>} < \& ", display=False)
    assert "<script" not in html


def test_every_glyph_has_a_rule(typesetter):
    tall = r"\left\{ \begin{matrix}1\\2\\3\\4\end{matrix}\right."
    html = typesetter.html(rf"\mathcal{{F}}\,\hat{{\theta}}\ \mathfrak{{g}} \int_0^\infty \sqrt[3]{{x}} {tall}", True)
    css = typesetter.stylesheet()
    glyphs = set(re.findall(r'<mjx-c class="(mjx-c[0-9A-F]+)', html))
    assert len(glyphs) > 8 and not [glyph for glyph in glyphs if f".{glyph}" not in css]


def test_mathjax_missing_says_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="make setup"):
        maths.Typesetter(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "nowrap", "expected"),
    [("a = b", False, "a = b"),
     (r"a \\ b", False, r"\begin{split}a \\ b\end{split}"),
     ("a\n\nb", False, r"\begin{aligned}a \\ b\end{aligned}"),
     (r"\begin{align}a\end{align}", True, r"\begin{align}a\end{align}")],
)  # fmt: skip
def test_source_is_what_sphinx_means(text, nowrap, expected):
    assert maths.source(nodes.math_block(text, text, nowrap=nowrap)) == expected


def test_a_mistake_fails_the_build(tmp_path):
    from sphinx.cmd.build import main

    (tmp_path / "conf.py").write_text("extensions = ['paperbook.press.site.maths']\nhtml_math_renderer = 'typeset'\n")
    for text, expected in ((":math:`x^2`", 0), (r":math:`\nosuch`", 1)):
        (tmp_path / "index.rst").write_text(f"Title\n=====\n\n{text}\n")
        assert bool(main(["-q", "-W", "-E", "-b", "html", str(tmp_path), str(tmp_path / "out")])) == bool(expected)
    assert "mjx-container" not in (tmp_path / "out" / "index.html").read_text()
