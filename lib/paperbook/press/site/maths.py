"""Mathematics typeset when the book is built: MathJax runs here, in V8, and the pages hold its output.

A page then shows its equations without a script: nothing to download but fonts, nothing to compute on a phone, and
nothing that moves while one reads. The output is that of MathJax in a browser, glyph for glyph; beside it stands the
same formula as MathML, which screen readers read. A macro that MathJax does not know is a warning, which -W makes an error.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

from paperbook.press.mathjax import SCRIPTS
from paperbook.study import paths

logger = logging.getLogger(__name__)

# noerrors and noundefined would show a mistake in red instead of reporting it; require and autoload load files at run time;
# bussproofs measures in a browser; physics gives common commands another meaning
_START = """
var global = globalThis, console = {log() {}, warn() {}, error() {}, info() {}};
globalThis.MathJax = {loader: {load: [], ready() {}}, startup: {ready() {}, typeset: false}};
"""
_READY = """
(() => {
  const part = MathJax._, adaptor = part.adaptors.liteAdaptor.liteAdaptor();
  part.handlers.html_ts.RegisterHTMLHandler(adaptor);
  const unwanted = ['noerrors', 'noundefined', 'require', 'autoload', 'bussproofs', 'physics'];
  const packages = part.input.tex.AllPackages.AllPackages.filter(name => !unwanted.includes(name));
  const input = new part.input.tex_ts.TeX({packages, macros: MACROS, formatError(jax, error) { throw Error(error.message) }});
  const font = new part.output.chtml.fonts.tex_ts.TeXFont({fontURL: FONTS});
  const output = new part.output.chtml_ts.CHTML({font, adaptiveCSS: false});
  const page = part.mathjax.mathjax.document('', {InputJax: input, OutputJax: output});
  const visitor = new part.core.MmlTree.SerializedMmlVisitor.SerializedMmlVisitor();
  const compiled = part.core.MathItem.STATE.CONVERT;  // so far there is a tree and no typesetting
  globalThis.typeset = (tex, display) => adaptor.outerHTML(page.convert(tex, {display}));
  globalThis.spoken = (tex, display) => visitor.visitTree(page.convert(tex, {display, end: compiled}));
  globalThis.stylesheet = () => adaptor.textContent(output.styleSheet(page));
  return 0;
})()
"""


class MathsError(ValueError):
    """TeX that cannot be typeset."""


class Typesetter:
    """MathJax in V8. Start-up takes a tenth of a second, a formula about a millisecond.

    Args:
        folder: where `paperbook.press.mathjax` put MathJax.
        macros: name -> TeX, or [TeX, number of arguments], as in MathJax's configuration.
        fonts: address of the fonts as the stylesheet names it.

    Raises:
        FileNotFoundError: MathJax is not there.
    """

    def __init__(self, folder: Path, macros: dict[str, Any], fonts: str = "maths") -> None:
        from py_mini_racer import MiniRacer

        missing = [name for name in SCRIPTS if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f"MathJax lacks {', '.join(missing)}; `make setup` fetches it")
        self._engine = MiniRacer()
        self._engine.eval(_START)
        for name in SCRIPTS:
            self._engine.eval((folder / name).read_text(encoding="utf-8") + "\n;0")
        self._engine.eval(_READY.replace("MACROS", json.dumps(macros)).replace("FONTS", json.dumps(fonts)))
        self._cache: dict[tuple[str, bool], str] = {}

    def html(self, tex: str, display: bool) -> str:
        """The formula as HTML, with its MathML beside it for screen readers.

        Raises:
            MathsError: `tex` cannot be typeset; the message is MathJax's.
        """
        from py_mini_racer import JSEvalException

        key = (tex, display)
        if key not in self._cache:
            try:
                shown = self._call("typeset", tex, display)
                spoken = self._call("spoken", tex, display)
            except JSEvalException as error:
                raise MathsError(_message(error)) from None
            self._cache[key] = _with_mathml(shown, spoken)
        return self._cache[key]

    def stylesheet(self) -> str:
        """The rules of every glyph and every construction, 0.2 MB; `press.site.weight` keeps what the book uses."""
        return str(self._engine.eval("stylesheet()"))

    def _call(self, name: str, tex: str, display: bool) -> str:
        return str(self._engine.eval(f"{name}({json.dumps(tex)}, {json.dumps(display)})"))


def _message(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return next((line.split("Error: ", 1)[1] for line in lines if "Error: " in line), lines[0] if lines else "unknown error")


def _with_mathml(shown: str, spoken: str) -> str:
    head, _, rest = shown.partition(">")
    body, _, _ = rest.rpartition("</mjx-container>")
    body = body.replace("<mjx-math", '<mjx-math aria-hidden="true"', 1)
    return f"{head}>{body}<mjx-assistive-mml>{_compact(spoken)}</mjx-assistive-mml></mjx-container>"


def _compact(mathml: str) -> str:
    mathml = re.sub(r">\s+<", "><", mathml)
    return re.sub(r' (?:data-mjx-[\w-]+|class|mathcolor)="[^"]*"', "", mathml)


def source(node: nodes.math_block) -> str:
    """The TeX of a displayed formula as Sphinx means it: several paragraphs are aligned, ``\\\\`` splits one."""
    if node["nowrap"]:
        return node.astext()
    parts = [part.strip() for part in node.astext().split("\n\n") if part.strip()]
    split = [rf"\begin{{split}}{part}\end{{split}}" if r"\\" in part else part for part in parts]
    return split[0] if len(split) == 1 else r"\begin{aligned}" + r" \\ ".join(split) + r"\end{aligned}"


# --- Sphinx ------------------------------------------------------------------------------------------------------


@functools.cache
def _typesetter(macros: str) -> Typesetter:
    return Typesetter(paths.root() / "vendor" / "mathjax", json.loads(macros))


def typesetter(config: Any) -> Typesetter:
    """The process's typesetter with the macros of the book's configuration (``paperbook_macros``)."""
    return _typesetter(json.dumps(config.paperbook_macros, sort_keys=True))


def _html(translator: Any, node: nodes.Node, tex: str, display: bool) -> str:
    try:
        return typesetter(translator.builder.config).html(tex, display)
    except MathsError as error:
        logger.warning("mathematics: %s in %s", error, tex.strip(), location=node, type="paperbook", subtype="maths")
        return f"<code>{translator.encode(tex)}</code>"


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    self.body.append(_html(self, node, node.astext(), display=False) + "</span>")
    raise nodes.SkipNode


def _displayed(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append(_html(self, node, source(node), display=True) + "</div>")
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.add_config_value("paperbook_macros", {}, "env")
    app.add_html_math_renderer("typeset", inline_renderers=(_inline, None), block_renderers=(_displayed, None))
