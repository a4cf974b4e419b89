"""What the reference pages are computed from: public names, readable annotations, docstrings as markup, parameter tables."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Annotated, Literal

import docutils.core
import pytest
from pydantic import Field

from paperbook.press import library
from paperbook.press.site import api, docstrings, fields, signatures
from paperbook.study.params import Config

ORIGINS = {"np": "numpy", "Float": "jaxtyping.Float", "Any": "typing.Any", "jt": "jaxtyping", "Path": "pathlib.Path"}

SOURCE = '''"""A module."""
import math
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from x import Y
    Z = 1
_PRIVATE = 1
LIMIT = 10  # most rows
# what it is
# for
ABOVE: int = 2
BELOW = (
    1,
)
"""Text below."""
# ---------------------------------------- rates
BARE = math.pi
try:
    import fast
    def f(): ...
except ImportError:
    pass
class C: ...
def _hidden(): ...
def f(): ...
if __name__ == "__main__":
    code = f()
'''


def test_public_names_of_a_source() -> None:
    found = library._defined(ast.parse(SOURCE).body, SOURCE)
    assert [name.name for name in found] == ["_PRIVATE", "LIMIT", "ABOVE", "BELOW", "BARE", "f", "C", "_hidden", "f"]
    notes = {name.name: name.note for name in found if name.kind == "data"}
    assert notes == {"_PRIVATE": "", "LIMIT": "most rows", "ABOVE": "what it is for", "BELOW": "Text below.", "BARE": ""}
    assert next(name.value for name in found if name.name == "BARE") == "math.pi"


def test_modules_and_names_of_the_library() -> None:
    modules = library.modules("paperbook.runner")
    assert "paperbook.runner.engines.local" in modules and "paperbook.runner" not in modules  # its __init__ defines nothing
    assert "closure" in {name.name for name in library.names("paperbook.study.closure")}
    assert not [name for name in library.names("paperbook.study.closure") if name.name in ("Path", "ast", "_graph")]
    with pytest.raises(ValueError, match="expected a package or module of paperbook, got 'paperbook.nowhere'"):
        library.modules("paperbook.nowhere")


def test_origins_follow_relative_imports() -> None:
    found = library.origins("paperbook.papers.safe_residual.rates")
    assert found["FloatArray"] == "paperbook.study.arguments.FloatArray"
    assert found["check"] == "paperbook.study.arguments"
    relative = library.origins("paperbook.papers.dr_submodular.wrappers")
    assert relative["DRSubmodular"] == "paperbook.papers.dr_submodular.functions.DRSubmodular"
    assert found["np"] == "numpy" and found["minimax_rate"] == "paperbook.papers.safe_residual.rates.minimax_rate"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ('Float[np.ndarray, " n"]', 'Float[ndarray, "n"]'),
        ('jt.Float[np.ndarray, "n *batch"] | None', 'Float[ndarray, "n *batch"] | None'),
        ("Optional[Union[int, str]]", "int | str | None"),
        ('Literal["a", "b"]', '"a" | "b"'),
        ("Annotated[list[float], Field(ge=0)]", "list[float]"),
        ('list["Path"]', "list[Path]"),
        ("Callable[[Any], np.ndarray]", "Callable[[Any], ndarray]"),
    ],
)
def test_annotations_are_readable(written: str, shown: str) -> None:
    assert signatures.annotation(written, ORIGINS)[0].replace("'", '"') == shown


def test_annotations_say_what_their_names_stand_for() -> None:
    _, meant = signatures.annotation('dict[str, Float[np.ndarray, "n"]] | Path', ORIGINS)
    assert meant == {"Float": "jaxtyping.Float", "ndarray": "numpy.ndarray", "Path": "pathlib.Path"}


def test_signatures_are_those_of_the_source() -> None:
    from paperbook.papers.safe_residual.estimators import SafeResidualRegressor, SelectionReport, gain_and_error

    shown = signatures.signature(gain_and_error)
    assert shown is not None and shown[:2] == ("(differences: Float[ndarray, 'n_v'])", "tuple[float, float]")
    shown = signatures.signature(SafeResidualRegressor)
    assert shown is not None and "val_fraction=0.3" in shown[0] and "self" not in shown[0]
    shown = signatures.signature(SelectionReport)
    assert shown is not None and shown[0].endswith("alpha: float | None = None)")


def test_defaults_never_show_an_object() -> None:
    @dataclass
    class Made:
        items: list[int] = field(default_factory=list)
        thing: object = object()

    shown = signatures.signature(Made)
    assert shown is not None
    assert "items: list[int] = []" in shown[0] and "thing: object = ..." in shown[0]


def test_a_parameter_class_has_no_signature_but_rows() -> None:
    class Page(Config):
        n: int = Field(2000, ge=16, le=5 * 10**6, description="rows")
        share: float = Field(0.5, gt=0, lt=1, description="part")
        rule: Literal["path", "holdout"] = Field("path", description="what chooses")
        grid: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=2)] = Field([0.0, 1.0], description="radii")
        limit: int | None = Field(None, lt=2**31)

    assert signatures.signature(Page) == ("", "", {})
    own, inherited = fields.rows(Page)
    assert [(row.name, row.type, row.default, row.range, row.meaning) for row in own] == [
        ("n", "int", "2000", "16 ≤ x ≤ 5 × 10⁶", "rows"),
        ("share", "float", "0.5", "0 < x < 1", "part"),
        ("rule", "str", '"path"', '"path", "holdout"', "what chooses"),
        ("grid", "list[float]", "[0.0, 1.0]", "at least 2 values, each ≥ 0", "radii"),
        ("limit", "int | None", "None", "< 2³¹", "–"),
    ]
    assert inherited == {"paperbook.study.params.Config": ["profile", "seed"]}


def test_members_are_what_no_other_place_shows() -> None:
    from paperbook.papers.safe_residual.estimators import ConcatRegressor, ScratchRegressor, SharesBlackBox

    assert api.members(ConcatRegressor) == [("fit", "method"), ("predict", "method")]
    assert api.members(ScratchRegressor) == [("fit", "method"), ("predict", "method")]
    assert api.members(SharesBlackBox) == [("set_params", "method")]


def parsed(text: str) -> str:
    """The plain text that docutils reads in repaired markup; a warning is an error."""
    source = "\n".join([".. role:: pb-name(literal)", ".. role:: pb-ref(literal)", ".. role:: py-x", "",
                        *docstrings.repaired(text.splitlines())])  # fmt: skip
    settings = {"halt_level": 2, "report_level": 2, "smart_quotes": False, "syntax_highlight": "none"}
    return docutils.core.publish_doctree(source, settings_overrides=settings).astext()


@pytest.mark.parametrize(
    "text",
    [
        "|r^| <= B and r* = f* - f_0, delta * shape * 2",
        "a *starred start and **options without an end",
        "attributes alphas_ and black_box__x of ||r||^2",
        "already escaped: \\|mu\\| <= 3B",
        "--set a=1 and x -- y",
    ],
)
def test_formulas_survive_as_they_are(text: str) -> None:
    assert parsed(text) == text.replace("\\|", "|")


def test_names_become_links_and_code_stays_code() -> None:
    (line,) = docstrings.repaired(["`fit` of `rates.bump_constant`, `a*b`, ``kept``, :func:`run`, :attr:`keep`, 2`n`s"])[:1]
    assert line == (":pb-name:`fit` of :pb-name:`rates.bump_constant`, ``a*b``, ``kept``, :pb-ref:`run`, :pb-name:`keep`, "
                    "2\\ :pb-name:`n`\\ s")  # fmt: skip


def test_a_span_over_two_lines_is_one_name() -> None:
    assert parsed("see `a\nb` there") == "see\na b there"
    assert docstrings.repaired([":param x: from `one", "    two` on"])[0].startswith(":param x:")


def test_values_keep_straight_quotes() -> None:
    assert docstrings.repaired(['"path" or "no word of mine"'])[0] == '``"path"`` or "no word of mine"'


def test_lists_and_formulas_in_a_paragraph() -> None:
    text = "Write mu.\n(1) first\n(2) second,\n    longer\n(3) third"
    assert parsed(text).split("\n\n") == ["Write mu.", "first", "second,\nlonger", "third"]
    assert ".. code-block:: text" in docstrings.repaired(["is at most", "", "    (1+t)/(1-t) * x", "", "for all t"])


def test_a_card_becomes_a_list() -> None:
    text = "Card\n    source: a table,\n        wrapped\n    oddly.\n    licence: MIT"
    assert parsed(text).split("\n\n") == ["Card:", "source: a table, wrapped oddly.", "licence: MIT"]


def test_sentences_are_no_types() -> None:
    lines = ["its folder's name.", "", ":type: How messages call it"]
    docstrings.process(None, "property", "paperbook.x.C.name", None, None, lines)
    assert lines[0] == "How messages call it: its folder's name."
    lines = docstrings.repaired([":returns: what is left.", ":rtype: (value, u)"])
    assert lines[0] == ":returns: (value, u): what is left."
    assert docstrings.repaired([":ivar a, b: both"])[0] == ":ivar a,b: both"


def test_names_are_found_where_the_module_means_them() -> None:
    class Entry:
        def __init__(self, objtype: str) -> None:
            self.objtype = objtype

    start = "paperbook.papers.safe_residual"
    known = {f"{start}.rates": Entry("module"), f"{start}.rates.bump_constant": Entry("function"),
             f"{start}.piecewise": Entry("module"), f"{start}.piecewise.piecewise_risks": Entry("function"),
             f"{start}.piecewise.Fit.n": Entry("attribute"), f"{start}.piecewise.Fit": Entry("class")}  # fmt: skip
    assert api.find("bump_constant", f"{start}.synthetic", known) == f"{start}.rates.bump_constant"  # imported there
    assert api.find("piecewise_risks", f"{start}.config", known) == f"{start}.piecewise.piecewise_risks"  # defined once
    assert api.find("n", f"{start}.config", known) is None  # an attribute of some class is no name
    twice = known | {f"{start}.heads": Entry("module"), f"{start}.heads.piecewise_risks": Entry("function")}
    assert api.find("piecewise_risks", f"{start}.config", twice) is None  # which of the two, nobody can say


def test_places_and_users_come_from_index_and_stamps() -> None:
    rows = library.places()["paperbook.papers.safe_residual.estimators.adopts"]
    assert [row.page for row in rows] == ["3-price-of-safety", "4-estimator"]
    users = library.users()
    assert users["paperbook.data.diamonds"] == {"safe-residual": ["5-real-tables"]}
    assert not [module for module in users if module.startswith("paperbook.press")]


def test_every_package_has_a_page_in_the_table_of_contents() -> None:
    documents = library.documents()
    assert documents["paperbook.papers.safe_residual"] == "book/api/safe-residual"
    title, purpose = api._opening("book/api/figures")
    assert title == "How the book draws" and purpose.startswith("One style") and purpose.endswith(".")


def test_an_example_keeps_its_shape() -> None:
    lines = ["Does it.", "", "::", "", "    call(a,", "         b * c)", "", "After."]
    found = "\n".join(docstrings.repaired(lines))
    assert ".. code-block:: python\n\n    call(a,\n         b * c)\n\nAfter." in found
