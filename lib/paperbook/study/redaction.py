"""Keeps secrets out of logs, notebooks and results."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

MASK = "[redacted]"
_SECRET_NAME = re.compile(
    r"(TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY)(?!.*(PATH|FILE|DIR)$)", re.IGNORECASE
)
# the forms of well-known services, whatever variable they came from
_SHAPES = re.compile(
    r"\bhf_[A-Za-z0-9]{16,}"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bAIza[0-9A-Za-z_-]{30,}"
    r"|\bxox[abprs]-[0-9A-Za-z-]{10,}"
    r"|\bglpat-[0-9A-Za-z_-]{16,}"
    r"|(?<=://)[^/\s:@]*:[^/\s]+(?=@)"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"
)
_SHORTEST = 6  # a shorter value would hide ordinary words


def redact(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` with secrets replaced by ``[redacted]``.

    A secret is the value of an environment variable whose name speaks of a token, secret, password, credential or key, and
    whatever looks like a token of a well-known service or a password inside an address.

    Args:
        text: any text.
        environment: where secrets are looked up; by default this process's own variables.
    """
    variables = os.environ if environment is None else environment
    values = {value for name, value in variables.items() if _SECRET_NAME.search(name) and len(value) >= _SHORTEST
              and not value.isdigit() and value.lower() not in ("false", "true")}  # fmt: skip
    # a traceback shows the repr of a text, a notebook its JSON form; a file that holds a token often ends in a newline
    forms = {form for value in values for form in (value, value.strip(), repr(value)[1:-1], json.dumps(value)[1:-1])}
    for form in sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(form, MASK)
    return _SHAPES.sub(MASK, text)
