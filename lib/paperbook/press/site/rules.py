"""The chapter contract as a table: what each rule wants, in the words of its own docstring."""

from __future__ import annotations

import inspect
from typing import Any

from docutils import nodes

from paperbook.press import contract
from paperbook.press.site.base import Computed, Content, register


class ContractRules(Computed):
    """``{contract-rules}``: the rules of the chapter contract, from the docstrings of their functions."""

    def show(self, argument: str) -> list[nodes.Node]:
        self.depend("lib/paperbook/press/contract.py")
        # not at import: the contract itself imports this package
        body: list[list[Content]] = [
            [nodes.literal("", rule.__name__), kind, self.inline(wanted(rule))]
            for kind, rules in (("structure", contract.STRUCTURE), ("content", contract.CONTENT))
            for rule in rules
        ]
        return [self.table("Rules of the chapter contract", ["Rule", "Kind", "What it wants"], body, "pb-rules")]


def wanted(rule: contract.Rule) -> str:
    """What a rule wants: the first paragraph of its docstring, on one line.

    Raises:
        ValueError: the rule has no docstring.
    """
    text = inspect.getdoc(rule)
    if not text:
        raise ValueError(f"contract.{rule.__name__}: expected a docstring that says what the rule wants, got none")
    return " ".join(text.split("\n\n")[0].split())


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {"contract-rules": ContractRules})
