"""Every chapter in the table of contents keeps the chapter contract; a failure says what to write."""

from __future__ import annotations

import pytest

from paperbook.press import contract, toc


@pytest.mark.parametrize("rule", contract.RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("slug", toc.toc_slugs())
def test_contract(slug: str, rule: contract.Rule) -> None:
    messages = rule(slug)
    if messages:  # the messages alone: a trace through this file helps nobody
        pytest.fail("\n".join(messages), pytrace=False)
