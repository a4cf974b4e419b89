"""What a page weighs: one stylesheet with the rules the book uses, and fonts with the glyphs it uses.

The theme brings ten stylesheets (100 kB packed, two thousand icon names among them), an icon font of 150 kB and MathJax's
fonts of 110 kB. After the build everything that no page and no script names is left out. The pass works on the built folder
and can be repeated: an incremental build ends with the same files as a clean one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import logging
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paperbook.press.mathjax import FONTS
from paperbook.press.site import maths
from paperbook.study import paths

# named by pydata-sphinx-theme's own template, so they are not among Sphinx's css_files
_THEME = ("_static/styles/theme.css", "_static/styles/pydata-sphinx-theme.css")
_INLINED = 4_000  # bytes; a font as small as that costs less inside the stylesheet than a request


@dataclass
class Used:
    """Names that occur in pages and scripts: classes and ids, and names of elements."""

    words: set[str] = field(default_factory=set)
    elements: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, pages: Iterable[str], scripts: Iterable[str]) -> Used:
        """Collect from texts. A script may build any of its words into a page, so all of them count."""
        used = cls()
        for text in pages:
            used.elements.update(re.findall(r"<([a-z][a-z0-9-]*)", text))
            for value in re.findall(r'\b(?:class|id)="([^"]*)"', text):
                used.words.update(value.split())
        for text in scripts:
            used.words.update(re.findall(r"[A-Za-z_][\w-]*", text))
        return used

    def wants(self, selector: str) -> bool:
        """Whether a selector can match: every class it demands occurs, and every element of MathJax's."""
        demanded = re.sub(r"\((?:[^()]|\([^()]*\))*\)", "", selector)  # what stands in :not(...) or :is(...) is not demanded
        demanded = re.sub(r"\[[^\]]*\]", "", demanded)
        if "\\" in demanded:
            return True
        classes = re.findall(r"\.([A-Za-z_][\w-]*)", demanded)
        elements = re.findall(r"\b(mjx-[\w-]+)", re.sub(r"[.#][\w-]+", "", demanded))
        return self.words.issuperset(classes) and self.elements.issuperset(elements)


def pruned(css: str, used: Used) -> str:
    """The stylesheet without the rules that match nothing; what remains is as it was."""
    import tinycss2

    return "".join(_rules(tinycss2.parse_stylesheet(css, skip_comments=True, skip_whitespace=True), used))


def _rules(rules: Iterable[Any], used: Used) -> Iterable[str]:
    import tinycss2

    for rule in rules:
        if rule.type == "qualified-rule":
            kept = [selector for selector in _selectors(tinycss2.serialize(rule.prelude)) if used.wants(selector)]
            if kept:
                yield f"{','.join(kept)}{{{_squeezed(tinycss2.serialize(rule.content))}}}\n"
        elif rule.type == "at-rule" and rule.lower_at_keyword in ("media", "supports", "layer") and rule.content is not None:
            inner = tinycss2.parse_rule_list(rule.content, skip_comments=True, skip_whitespace=True)
            text = "".join(_rules(inner, used))
            if text:
                yield f"@{rule.at_keyword} {tinycss2.serialize(rule.prelude).strip()}{{\n{text}}}\n"
        elif rule.type == "at-rule" and rule.lower_at_keyword != "charset":
            yield rule.serialize() + "\n"
        elif rule.type == "error":
            raise ValueError(f"stylesheet: {rule.message}")


def _selectors(prelude: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth, current = [], 0, ""
    for character in prelude:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += character
    return [*parts, current.strip()]


def _squeezed(declarations: str) -> str:
    return re.sub(r"\s*\n\s*", "", declarations).strip().rstrip(";")


# --- fonts -------------------------------------------------------------------------------------------------------


def characters(css: str, family: str) -> set[int]:
    """Code points that the stylesheet puts into a page in a font: ``content``, and variables that hold the theme's icons.

    MathJax names a glyph's font by a class (``TEX-I`` for italic; none for the main font); parts of stretched delimiters are
    looked for in four fonts.
    """
    found: set[int] = set()
    for selector, value in _strings(css):
        if family.startswith("MJX"):
            if "mjx-stretchy" in selector:
                wanted = family in ("MJXTEX", "MJXTEX-A", "MJXTEX-S1", "MJXTEX-S4")
            else:
                of = re.search(r"\.(TEX-\w+)", selector)
                wanted = "mjx-c" in selector and family == ("MJX" + of[1] if of else "MJXTEX")
        else:
            wanted = "mjx-c" not in selector
        if wanted:
            text = re.sub(r"\\([0-9a-fA-F]{1,6})\s?", lambda match: chr(int(match[1], 16)), value[1:-1])
            found.update(map(ord, text))
    if "Awesome" in family:
        found = {point for point in found if point >= 0xE000}  # its icons; letters come from the fonts of the text
    return found


def _strings(css: str) -> Iterable[tuple[str, str]]:
    """(selector, quoted string) of every declaration that may show text."""
    for selector, declarations in re.findall(r"([^{}]*)\{([^{}]*)\}", css):
        for value in re.findall(r"(?:content|--[\w-]+)\s*:\s*(\"[^\"]*\"|'[^']*')", declarations):
            yield selector, value


def subset(font: Path, points: set[int]) -> bytes:
    """The font as WOFF with those of its glyphs that `points` name; empty where it has none of them."""
    from fontTools import subset as fonttools
    from fontTools.ttLib import TTFont

    logging.getLogger("fontTools").setLevel(logging.ERROR)  # it tells of every table it prunes
    options = fonttools.Options()
    options.flavor = "woff"
    options.notdef_outline = True
    options.layout_features = []
    options.recalc_timestamp = False
    with TTFont(font) as loaded:
        wanted = points & set(loaded.getBestCmap())
        if not wanted:
            return b""
        tool = fonttools.Subsetter(options)
        tool.populate(unicodes=wanted)
        tool.subset(loaded)
        loaded.flavor = "woff"
        out = io.BytesIO()
        loaded.save(out, reorderTables=False)
    return out.getvalue()


def with_fonts(css: str, static: Path, mathjax: Path) -> str:
    """The stylesheet with each font cut to its glyphs: small ones inside it, the others in ``_static/fonts``."""
    (static / "fonts").mkdir(exist_ok=True)

    def face(match: re.Match[str]) -> str:
        rule = match[0]
        source = next((s for s in re.findall(r"url\([\"']?([^\"')]+)", rule) if s.endswith((".ttf", ".woff"))), None)
        if source is None:
            return rule
        path = mathjax / FONTS / posixpath.basename(source) if source.startswith("maths/") else (static / source).resolve()
        if not path.is_file():
            raise FileNotFoundError(f"stylesheet: no font {source}")
        family = re.search(r"font-family\s*:\s*[\"']?([^;\"'}]+)", rule)
        name = family[1].replace("\\", "").strip() if family else ""
        # MathJax's font of no height has no glyph to cut: it keeps the line boxes of formulas flat
        cut = path.read_bytes() if name == "MJXZERO" else subset(path, characters(css, name))
        if not cut:
            return ""
        if len(cut) <= _INLINED:
            address = f"data:font/woff;base64,{base64.b64encode(cut).decode()}"
        else:
            name = f"{path.stem}.{hashlib.sha256(cut).hexdigest()[:8]}.woff"
            (static / "fonts" / name).write_bytes(cut)
            address = f"fonts/{name}"
        return re.sub(r"src\s*:[^;}]*(?:;base64[^;}]*)?", f'src:url({address}) format("woff")', rule)

    return re.sub(r"@font-face\s*\{[^}]*\}", face, css)


# --- Sphinx ------------------------------------------------------------------------------------------------------


def _remember(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Which stylesheets the pages ask for, in order; the search page is written at every build, so there is always one."""
    for sheet in context.get("css_files", []):
        name = str(getattr(sheet, "filename", sheet)).split("?")[0]
        app.paperbook_css[name] = None


def _read(static: Path, name: str) -> str:
    """A stylesheet and what it imports, with addresses relative to ``_static``."""
    folder = posixpath.dirname(name)
    # every second piece is an imported name
    pieces = re.split(r"@import\s+(?:url\()?[\"']?([^\"');]+)[\"']?\)?\s*;", (static / name).read_text(encoding="utf-8"))
    pieces[::2] = [_rebased(piece, folder) for piece in pieces[::2]]
    pieces[1::2] = [_read(static, posixpath.normpath(posixpath.join(folder, piece))) for piece in pieces[1::2]]
    return "".join(pieces)


def _rebased(css: str, folder: str) -> str:
    """Addresses relative to a stylesheet in `folder`, made relative to ``_static``."""
    moved = lambda match: f"url({match[1]}{posixpath.normpath(posixpath.join(folder, match[2]))}{match[3]})"  # noqa: E731
    return re.sub(r"url\(([\"']?)(?!data:|#|/|https?:)([^\"')]+)([\"']?)\)", moved, css)


def _finish(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    pages = [path for path in out.rglob("*.html") if "_static" not in path.relative_to(out).parts]
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    scripts = [path.read_text(encoding="utf-8") for path in (out / "_static").rglob("*.js") if path.name != "fontawesome.js"]
    used = Used.of(texts.values(), scripts)
    sheets = [maths.typesetter(app.config).stylesheet()]
    sheets += [_read(out / "_static", name.removeprefix("_static/")) for name in (*_THEME, *app.paperbook_css)]
    version, target = _version(sheets, used), out / "_static" / "book.css"
    if not target.is_file() or version.encode() not in target.read_bytes()[:20]:
        css = with_fonts(pruned("\n".join(sheets), used), out / "_static", paths.root() / "vendor" / "mathjax")
        target.write_text(f"/* {version} */\n{css}", encoding="utf-8")
    for path, text in texts.items():
        new = re.sub(r"(_static/book\.css\?v=)\w+", rf"\g<1>{version}", text)
        if new != text:
            path.write_text(new, encoding="utf-8")


def _version(sheets: list[str], used: Used) -> str:
    """Of everything the stylesheet is made from, this module included: the same version is the same file."""
    parts = [*sheets, *sorted(used.words), *sorted(used.elements), Path(__file__).read_text(encoding="utf-8")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.paperbook_css = {}
    app.connect("html-page-context", _remember, priority=950)  # after every extension has added its own
    app.connect("build-finished", _finish, priority=900)  # the theme writes the colours of code at this event too
