"""Signatures as the source writes them: shapes as `Float[ndarray, "n d"]`, names without the path of their module.

Autodoc would show the objects behind the annotations. Here the text of the annotation is shown, and `origins` of the module
says what each name in it stands for, so that ours become links and those of other libraries stay plain.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.util import inspect as sphinx_inspect

from paperbook.press import library

_SHAPED = ("jaxtyping",)
_SHORT = 60
"""Longest default that is shown whole, in characters."""


class _Readable(ast.NodeTransformer):
    """An annotation as a reader wants it; `found` collects what its names stand for."""

    def __init__(self, origins: dict[str, str]) -> None:
        self.origins = origins
        self.found: dict[str, str] = {}
        self._strings = False  # whether text in the annotation is a value, not the name of a class

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.origins:
            self.found[node.id] = self.origins[node.id]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root, _, rest = ast.unparse(node).partition(".")
        self.found[node.attr] = f"{self.origins.get(root, root)}.{rest}"
        return ast.Name(node.attr)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, str):
            return node
        if self._strings:
            return ast.Constant(node.value.strip())  # jaxtyping wants " n" for one axis
        return self.visit(ast.parse(node.value, mode="eval").body)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        outer = ast.unparse(node.value).rpartition(".")[2]
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Optional", "Union"):
            return self.visit(_either([*inside, ast.Constant(None)] if outer == "Optional" else inside))
        if outer in ("Annotated", "ClassVar", "Final"):
            return self.visit(inside[0])
        before, self._strings = self._strings, outer == "Literal" or self._is_shape(node.value)
        try:
            if outer == "Literal":
                return _either([self.visit(value) for value in inside])
            return ast.Subscript(self.visit(node.value), self.visit(node.slice), ast.Load())
        finally:
            self._strings = before

    def _is_shape(self, node: ast.expr) -> bool:
        root, _, rest = ast.unparse(node).partition(".")
        return f"{self.origins.get(root, root)}.{rest}".startswith(tuple(f"{name}." for name in _SHAPED))


def _either(values: Iterable[ast.expr]) -> ast.expr:
    first, *rest = values
    for value in rest:
        first = ast.BinOp(first, ast.BitOr(), value)
    return first


def annotation(text: Any, origins: dict[str, str]) -> tuple[str, dict[str, str]]:
    """A readable annotation, and what the names in it stand for.

    Args:
        text: as the source writes it, or the object it evaluated to.
        origins: names of the module, from `library.origins`.
    """
    text = getattr(text, "__forward_arg__", text)
    if not isinstance(text, str):
        text = sphinx_inspect.stringify_annotation(text, "fully-qualified-except-typing")
    readable = _Readable(origins)
    try:
        tree = readable.visit(ast.parse(" ".join(text.split()), mode="eval").body)
    except SyntaxError:
        return text, {}
    return ast.unparse(tree), readable.found


def unparsed(node: ast.AST) -> str:
    """The source of a piece of syntax."""
    return ast.unparse(node)


def signature(obj: Any) -> tuple[str, str, dict[str, str]] | None:
    """Arguments, result, and what the names in both stand for; None where a signature would say nothing of ours.

    Args:
        obj: a function or class of the library.
    """
    plain = inspect.unwrap(obj) if not inspect.isclass(obj) else obj
    if inspect.isclass(plain) and not _constructed_here(plain):
        return "", "", {}
    try:
        parameters = inspect.signature(plain)
    except (TypeError, ValueError):
        return None
    origins = _origins(plain)
    defaults = _written_defaults(plain)
    found: dict[str, str] = {}
    shown = []
    for parameter in parameters.parameters.values():
        changes: dict[str, Any] = {}
        if parameter.annotation is not parameter.empty:
            text, meant = annotation(parameter.annotation, origins)
            found |= meant
            changes["annotation"] = _Written(text)
        if parameter.default is not parameter.empty:
            changes["default"] = _Written(_default(plain, parameter, defaults))
        shown.append(parameter.replace(**changes))
    result = ""
    if parameters.return_annotation is not parameters.empty and not inspect.isclass(plain):
        result, meant = annotation(parameters.return_annotation, origins)
        found |= meant
    if shown and shown[0].name in ("self", "cls") and "." in getattr(plain, "__qualname__", ""):
        del shown[0]
    written = str(inspect.Signature(shown))
    return written, result, found


class _Written:
    """A piece of source that prints as itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _constructed_here(cls: type) -> bool:
    """Whether the arguments of a class are this library's own: its parameters, fields or ``__init__``."""
    if hasattr(cls, "model_fields"):  # shown as a table
        return False
    if dataclasses.is_dataclass(cls) or hasattr(cls, "_fields"):
        return True
    owner = next((base for base in cls.__mro__ if "__init__" in vars(base)), object)
    return owner.__module__.split(".")[0] == library.PACKAGE


def _origins(obj: Any) -> dict[str, str]:
    """Names of the modules that define `obj`; of a class, of those of its bases too, since it may inherit its arguments."""
    found: dict[str, str] = {}
    for part in reversed(obj.__mro__) if inspect.isclass(obj) else [obj]:
        module = part.__module__ or ""
        if module.split(".")[0] == library.PACKAGE:
            found |= library.origins(module)
    return found


def _written_defaults(obj: Any) -> dict[str, str]:
    """Defaults as the source writes them, by parameter."""
    made = vars(obj).get("__init__") if inspect.isclass(obj) else obj
    if inspect.isclass(obj) and made is None:
        made = next((vars(base)["__init__"] for base in obj.__mro__ if "__init__" in vars(base)), None)
    code = getattr(made, "__code__", None)
    try:
        path = library.source(getattr(made, "__module__", None) or "")
    except ValueError:
        return {}
    if code is None:
        return {}
    for node in _functions(path, path.stat().st_mtime_ns).get(code.co_name, []):
        # the first line of decorated code is that of its first decorator
        if code.co_firstlineno in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
            positional = [*node.args.posonlyargs, *node.args.args]
            pairs = list(zip(reversed(positional), reversed(node.args.defaults), strict=False))
            pairs += [(arg, value) for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if value]
            return {arg.arg: ast.unparse(value) for arg, value in pairs}
    return {}


@lru_cache(maxsize=64)
def _functions(path: Path, mtime: int) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
    found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
    for node in ast.walk(library.tree(path, mtime)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def _default(obj: Any, parameter: inspect.Parameter, written: dict[str, str]) -> str:
    text = written.get(parameter.name)
    if text is None:
        value = parameter.default
        fields = {field.name: field for field in dataclasses.fields(obj)} if dataclasses.is_dataclass(obj) else {}
        made_by: Any = fields[parameter.name].default_factory if parameter.name in fields else dataclasses.MISSING
        if made_by is not dataclasses.MISSING:
            value = made_by() if made_by in (list, dict, set, tuple) else _Written(f"{getattr(made_by, '__name__', '...')}()")
        text = repr(value)
        if text.startswith("<") or " at 0x" in text or "array(" in text:  # an object, not what somebody wrote
            text = "..."
    return text if len(text) <= _SHORT else "..."


def finish(description: addnodes.desc, meant: dict[str, str]) -> None:
    """Give the names in a parsed signature their targets, and its texts the quotes of the source.

    Args:
        description: the parsed object.
        meant: what the names stand for, from `signature` or `annotation`.
    """
    for head in description.findall(addnodes.desc_signature):
        if head.parent is not description:
            continue
        for reference in list(head.findall(addnodes.pending_xref)):
            target = meant.get(reference["reftarget"])
            if target is None and "." in reference["reftarget"]:
                target = reference["reftarget"]
            if target is None:
                continue
            if target.split(".")[0] == library.PACKAGE and not target.rpartition(".")[2].startswith("_"):
                reference["reftarget"], reference["refspecific"] = target, False
                reference["reftype"] = "obj"  # an alias is no class
            else:
                reference.replace_self(reference.children)
        for text in list(head.findall(nodes.Text)):
            quoted = text.astext()
            if len(quoted) > 1 and quoted[0] == quoted[-1] == "'" and '"' not in quoted:
                text.parent.replace(text, nodes.Text(f'"{quoted[1:-1]}"'))
