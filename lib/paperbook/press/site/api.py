"""``{api} package``: the reference of a package, from its docstrings, with links to the chapters that derive and use it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import docutils.parsers.rst as rst
from docutils import nodes
from docutils.utils import new_document
from sphinx import addnodes
from sphinx.addnodes import pending_xref
from sphinx.util.nodes import make_refnode

from paperbook.press import library, toc
from paperbook.press.site import docstrings, fields, signatures
from paperbook.press.site.base import Computed, Content, register
from paperbook.press.site.chapter import anchor_ids
from paperbook.study import paths


class Api(Computed):
    """``{api} package``: every public module of a package in a section of its own."""

    def show(self, argument: str) -> list[nodes.Node]:
        package = argument or "(nothing)"
        modules = library.modules(package)
        folder = library.source(package)
        inside = folder.parent.relative_to(library.folder()).as_posix()
        self.depend(f"lib/{library.PACKAGE}/{inside}", "_toc.yml")
        for slug in toc.toc_slugs():
            self.depend(f"chapters/{slug}/index.yaml", f"book/pages/{slug}")
        self.places, self.users = library.places(), library.users()
        # read once: hundreds of names ask for them
        self.pages = toc.toc_pages()
        self.titles = {slug: toc.index(slug).get("title") or slug for slug in self.pages}
        self.anchors = {slug: anchor_ids(slug) for slug in self.pages}
        sections = [self._section(package, module) for module in modules]
        return [*([self._contents(sections)] if len(sections) > 1 else []), *sections]

    def _contents(self, sections: list[nodes.section]) -> nodes.bullet_list:
        """The modules with the first sentence of each: a phone shows no sidebar."""
        found = nodes.bullet_list(classes=["pb-modules"])
        for section in sections:
            name = nodes.literal("", section.next_node(nodes.title).astext())
            link = nodes.reference("", "", name, internal=True, refid=section["ids"][0])
            paragraphs = [node for node in section.children if isinstance(node, nodes.paragraph) and not node["classes"]]
            said = " ".join(paragraphs[0].astext().split()) if paragraphs else ""
            sentence = re.split(r"(?<=[.;])\s", said)[0].rstrip(".:;")
            found += nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(f": {sentence}." if sentence else "")))
        return found

    def _section(self, package: str, module: str) -> nodes.section:
        name = module.removeprefix(f"{package}.")
        section = nodes.section(ids=[nodes.make_id(module)], names=[nodes.fully_normalize_name(module)], classes=["pb-module"])
        section += nodes.title("", name if module != package else module.rpartition(".")[2])
        self.state.document.note_implicit_target(section, section)
        section += nodes.paragraph("", "", nodes.literal("", f"from {module} import …"), classes=["pb-import"])
        head = self._parsed(module, [f".. automodule:: {module}"])
        section += head
        section += self._used_by(module)
        section += self._parsed(module, list(_text_of(module)))
        return section

    def _parsed(self, module: str, lines: list[str]) -> list[nodes.Node]:
        """reStructuredText as nodes; what autodoc cannot know is added to each description."""
        document = new_document(self.state.document["source"], self.state.document.settings)
        document.reporter = self.state.document.reporter
        rst.Parser().parse("\n".join([*lines, ""]), document)
        for description in list(document.findall(addnodes.desc)):
            self._complete(module, description)
        return document.children

    def _complete(self, module: str, description: addnodes.desc) -> None:
        head = description[0]
        assert isinstance(head, addnodes.desc_signature)
        name = f"{head['module']}.{head['fullname']}"
        signatures.finish(description, library.origins(module) | self.env.temp_data.get("pb_meant", {}).get(name, {}))
        if description["objtype"] not in ("function", "class", "exception"):
            head["_toc_name"] = ""  # the table of contents names what one imports; every page's navigation copies it
        content = description[-1]
        for several in list(content.findall(addnodes.literal_strong)):
            several[0] = nodes.Text(several.astext().replace(",", ", "))
        for label in list(content.findall(nodes.field_name)):
            if label.astext() == "Variables":  # what Sphinx calls the section that our docstrings call so
                label.clear()
                label += nodes.Text("Attributes")
        added: list[nodes.Node] = []
        obj = _found(name)
        if inspect.isclass(obj) and fields.has_fields(obj):
            added += self._fields(obj)
        if name in self.places:
            added.append(self._in_the_book(self.places[name]))
        members = content.first_child_matching_class((addnodes.desc, addnodes.index))
        content[len(content) if members is None else members : len(content) if members is None else members] = added

    def _fields(self, cls: Any) -> list[nodes.Node]:
        own, inherited = fields.rows(cls)
        body: list[list[Content]] = [
            [nodes.literal("", row.name), nodes.literal("", row.type), nodes.literal("", row.default), row.range, row.meaning]
            for row in own
        ]
        found: list[nodes.Node] = []
        if body:
            header = ["Parameter", "Type", "Default", "Range", "Meaning"]
            found.append(self.table(f"Parameters of {cls.__name__}", header, body, "pb-fields"))
        for base, names in inherited.items():
            line = nodes.paragraph("", "", nodes.Text("Also "), classes=["pb-inherited"])
            for position, name in enumerate(names):
                line += [nodes.Text(", ")] if position else []
                line += nodes.literal("", name)
            line += [nodes.Text(" of "), self.api(base), nodes.Text(".")]
            found.append(line)
        return found

    def _in_the_book(self, rows: list[library.Place]) -> nodes.paragraph:
        line = nodes.paragraph("", "", nodes.strong("", "In the book:"), nodes.Text(" "), classes=["pb-in-the-book"])
        for position, row in enumerate(rows):
            line += [nodes.Text("; ")] if position else []
            anchor = self.anchors[row.slug].get((row.page, row.anchor), row.anchor)
            link = self.link(row.slug, row.page, "", anchor)
            link[0].extend(self.inline(row.item))  # items hold mathematics
            line += link
        return line

    def _used_by(self, module: str) -> list[nodes.Node]:
        found = self.users.get(module, {})
        if not found:
            return []
        line = nodes.paragraph("", "", nodes.strong("", "Used by:"), nodes.Text(" "), classes=["pb-used-by"])
        for position, (slug, pages) in enumerate(found.items()):
            line += [nodes.Text("; ")] if position else []
            known = self.pages[slug]
            line += [self.link(slug, known[0], self.titles[slug]), nodes.Text(" (")]
            if len(pages) == len(known):
                line += nodes.Text("every page)")
                continue
            line += nodes.Text("page " if len(pages) == 1 else "pages ")
            for number, page in enumerate(pages):
                line += [nodes.Text(", ")] if number else []
                line += self.link(slug, page, page.partition("-")[0])
            line += nodes.Text(")")
        return [line]


class ApiTable(Computed):
    """``{api-table}``: the packages of the library, with how much they hold and which chapters use them."""

    def show(self, argument: str) -> list[nodes.Node]:
        self.depend("_toc.yml")
        users, pages = library.users(), toc.toc_pages()
        titles = {slug: toc.index(slug).get("title") or slug for slug in pages}
        body: list[list[Content]] = []
        for slug in pages:
            self.depend(f"chapters/{slug}/index.yaml", f"book/pages/{slug}")
        for package, document in library.documents().items():
            self.depend(f"{document}.md", f"lib/{'/'.join(package.split('.'))}")
            modules = library.modules(package)
            count = sum(len(library.names(module)) for module in modules)
            slugs = dict.fromkeys(slug for module in modules for slug in users.get(module, {}))
            used: list[nodes.Node] = []
            for slug in slugs:
                used += [nodes.Text(", ")] if used else []
                used.append(self.link(slug, pages[slug][0], titles[slug]))
            title, purpose = _opening(document)
            name = nodes.literal("", package.removeprefix(f"{library.PACKAGE}."))
            link = pending_xref("", name, refdomain="", reftype="pb-document", reftarget=document,
                                refexplicit=True, refwarn=False)  # fmt: skip
            body.append([link, self.inline(f"{title}. {purpose}"), str(len(modules)), str(count), used or "–"])
        header = ["Package", "What it is for", "Modules", "Public names", "Chapters that use it"]
        return [self.table("Packages of the library", header, body, "pb-api")]


def _opening(document: str) -> tuple[str, str]:
    """Title of a page (what follows the name of the package) and the first sentence below it, without links."""
    text = (paths.root() / f"{document}.md").read_text(encoding="utf-8")
    match = re.match(r"# (?:[\w.]+: )?(.+)\n+((?:.+\n)+)", text)
    if match is None:
        raise ValueError(f"{document}.md: expected a title and a paragraph")
    prose = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(match[2].split()))
    return match[1][0].upper() + match[1][1:], re.split(r"(?<=\.)\s", prose)[0]


def _text_of(module: str) -> Iterator[str]:
    """The public names of a module as directives of autodoc, in the order of the source."""
    for name in library.names(module):
        if name.kind == "function":
            yield f".. autofunction:: {module}.{name.name}"
        elif name.kind == "class":
            yield f".. autoclass:: {module}.{name.name}"
            cls = _found(f"{module}.{name.name}")
            for member, kind in members(cls):
                yield ""
                yield f"   .. auto{kind}:: {module}.{name.name}.{member}"
        else:
            yield from _data(module, name)
        yield ""


def _data(module: str, name: library.Name) -> Iterator[str]:
    yield f".. py:data:: {name.name}"
    yield f"   :module: {module}"
    written = getattr(name.node, "annotation", None)
    if written is not None:
        shown, _ = signatures.annotation(signatures.unparsed(written), library.origins(module))
        if shown != "TypeAlias":
            yield f"   :type: {shown}"
    if name.value and "\n" not in name.value and len(name.value) <= 100:
        yield f"   :value: {name.value}"
    if name.note:
        yield ""
        yield from (f"   {line}" if line else "" for line in docstrings.repaired(inspect.cleandoc(name.note).splitlines()))


def members(cls: type) -> list[tuple[str, str]]:
    """Public members that a reader of a class needs: (name, ``method``, ``property`` or ``attribute``).

    Its own, and those of private bases, which no other place documents. Not those of public bases, of other libraries, nor
    what only fills in a base's hook without a word of its own.
    """
    found: dict[str, str] = {}
    ours = [base for base in cls.__mro__[1:] if base.__module__.split(".")[0] == library.PACKAGE]
    hidden = [base for base in ours if base.__name__.startswith("_")]
    for owner in [*reversed(hidden), cls]:
        for name, value in vars(owner).items():
            if name.startswith("_") or not _is_method(value):
                continue
            if not inspect.getdoc(value) or (not _own_doc(value) and any(name in vars(base) for base in owner.__mro__[1:])):
                continue
            found[name] = "property" if isinstance(value, property | cached_property) else "method"
    return list(found.items())


def _is_method(value: Any) -> bool:
    plain = isinstance(value, property | cached_property | classmethod | staticmethod)
    return plain or inspect.isfunction(value) or (callable(value) and hasattr(value, "__wrapped__"))  # the last: decorated


def _own_doc(value: Any) -> bool:
    return bool(getattr(getattr(value, "__func__", value), "__doc__", None))


def _found(name: str) -> Any:
    """The object of a dotted name; None where it exists only as an attribute of instances."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            obj: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            obj = getattr(obj, part, None)
        return obj
    return None


def _signature(app: Any, what: str, name: str, obj: Any, options: Any, args: Any, result: Any) -> tuple[str, str] | None:
    if name.split(".")[0] != library.PACKAGE:
        return None
    found = signatures.signature(obj)
    if found is None:
        return None
    app.env.temp_data.setdefault("pb_meant", {})[name] = found[2]
    return found[0], found[1]


def _name_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, options: Any = None, content: Any = None
) -> tuple[list[nodes.Node], list[Any]]:
    """A name in a docstring; `find` says later what it stands for."""
    title = text.removeprefix("~")
    shown = title.rpartition(".")[2] if text.startswith("~") else title
    context = inliner.document.settings.env.ref_context
    node = pending_xref("", nodes.literal("", shown), refdomain="py", reftype="obj", reftarget=title.removesuffix("()"),
                        refexplicit=True, refwarn=name == docstrings.STRICT, pb_name=True, pb_optional=name == docstrings.ROLE,
                        **{"py:module": context.get("py:module"), "py:class": context.get("py:class")})  # fmt: skip
    return [node], []


def find(name: str, module: str, known: Any) -> str | None:
    """Full name of what `name` stands for in a docstring of `module`, among the `known` full names; None where nothing is.

    A name that the module imports, or one that only one module of the same package defines.
    """
    root, _, rest = name.partition(".")
    meant = library.origins(module).get(root)
    full = ".".join(part for part in (meant, rest) if part)
    if meant and full in known:
        return full
    package = module.rpartition(".")[0]
    near = [full for full in known if full.startswith(f"{package}.") and full.endswith(f".{name}")]
    near = [full for full in near if _module_of(full, known) + f".{name}" == full]
    return near[0] if len(near) == 1 else None


def _module_of(full: str, known: Any) -> str:
    """The module a full name lies in: its longest front that is a module."""
    front = full
    while "." in front:
        front = front.rpartition(".")[0]
        if front in known and known[front].objtype == "module":
            return front
    return ""


def _resolve(app: Any, env: Any, node: pending_xref, inner: nodes.Node) -> nodes.Node | None:
    if node.get("reftype") == "pb-document":
        return make_refnode(app.builder, node["refdoc"], node["reftarget"], None, inner)
    if not node.get("pb_name") or not node.get("py:module"):
        return None
    known = env.get_domain("py").objects
    full = find(node["reftarget"], node["py:module"], known)
    if full is None:
        return None
    return make_refnode(app.builder, node["refdoc"], known[full].docname, known[full].node_id, inner, full)


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {"api": Api, "api-table": ApiTable})
    for role in (docstrings.ROLE, docstrings.STRICT):
        app.add_role(role, _name_role)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _resolve, priority=400)  # before names without a link become plain
    docstrings.setup(app)
