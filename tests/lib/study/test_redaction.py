"""Secrets are removed wherever they stand, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbook.study.redaction import MASK, redact

ENV = {"HF_TOKEN": "mine-and-only-mine", "AWS_SECRET_ACCESS_KEY": "abc/def+ghi=", "DB_PASSWORD": "hunter22",
       "OPENAI_API_KEY": "key0815", "HF_TOKEN_PATH": "/home/me/.cache/token", "TOKENIZERS_PARALLELISM": "false",
       "MAX_TOKENS": "1024", "SHORT_TOKEN": "abc", "HOME": "/home/me"}  # fmt: skip


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "OPENAI_API_KEY"])
def test_values_of_secret_variables(name: str) -> None:
    assert redact(f"a {ENV[name]} b{ENV[name]}", ENV) == f"a {MASK} b{MASK}"


@pytest.mark.parametrize(
    "text", ["/home/me/.cache/token", "false", "1024 tokens", "abc", "/home/me", "a plain sentence: hf_x, sk-1"]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text, ENV) == text


@pytest.mark.parametrize(
    "secret", ["hf_" + "aB3" * 8, "sk-proj-" + "x1" * 12, "ghp_" + "Z9" * 12, "github_pat_" + "a1_" * 9, "AKIA" + "A1B2" * 4]
)
def test_tokens_of_known_services_whatever_the_environment(secret: str) -> None:
    assert redact(f"x={secret}.", {}) == f"x={MASK}."


def test_passwords_in_addresses_and_headers() -> None:
    assert redact("https://me:geheim@host/x", {}) == f"https://{MASK}@host/x"
    assert redact("Authorization: Bearer abcdefghij0123456789", {}) == f"Authorization: Bearer {MASK}"


@given(st.text(max_size=60), st.text(min_size=8, max_size=12, alphabet="abcXYZ-_/+"))
def test_no_secret_is_left_and_twice_is_once(text: str, secret: str) -> None:
    env = {"MY_TOKEN": secret}
    once = redact(f"{text}{secret}{text}", env)
    assert secret not in once.replace(MASK, "") or secret in MASK
    assert redact(once, env) == once or secret in MASK


def test_a_secret_that_holds_another_goes_whole() -> None:
    assert redact("abcdefgh-long", {"A_TOKEN": "abcdefgh", "B_TOKEN": "abcdefgh-long"}) == MASK


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "hf_token", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "APIKEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN",
    "PGPASSWORD", "MYSQL_PASSWD", "CLIENT_SECRET", "GOOGLE_CREDENTIAL", "SSH_PRIVATE_KEY", "MY_PRIVATEKEY",
    "SECRET_PATHWAY", "TOKEN_2",
])  # fmt: skip
def test_names_that_speak_of_a_secret(name: str) -> None:
    assert redact("it is opensesame", {name: "opensesame"}) == f"it is {MASK}"


@pytest.mark.parametrize("name", [
    "HF_TOKEN_PATH", "GOOGLE_CREDENTIALS_FILE", "SECRETS_DIR", "hf_token_path", "HOME", "USER", "KEYBOARD", "PATH", "MONKEY",
])  # fmt: skip
def test_names_that_do_not(name: str) -> None:
    assert redact("it is opensesame", {name: "opensesame"}) == "it is opensesame"


@pytest.mark.parametrize(("value", "hidden"), [
    ("abcde", False), ("abcdef", True), ("", False), ("123456789", False), ("12345678x", True), ("FALSE", False),
    ("truetrue", True),
])  # fmt: skip
def test_values_that_are_too_plain_to_be_hidden(value: str, hidden: bool) -> None:
    text = f"loss {value} at step 3"
    assert redact(text, {"MY_TOKEN": value}) == (f"loss {MASK} at step 3" if hidden else text)


def test_the_variables_of_this_process_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert redact("a opensesame b") == "a opensesame b"
    monkeypatch.setenv("SOME_API_KEY", "opensesame")
    assert redact("a opensesame b opensesame") == f"a {MASK} b {MASK}"
    assert redact("a opensesame b", {}) == "a opensesame b"


SHAPED = ["hf_" + "aB3" * 8, "sk-proj-" + "x1" * 12, "sk-ant-api03-" + "Q-_" * 9, "ghp_" + "Z9" * 12, "gho_" + "Z9" * 12,
          "ghs_" + "Z9" * 12, "github_pat_" + "a1_" * 9, "AKIA" + "A1B2" * 4]  # fmt: skip


@pytest.mark.parametrize("secret", SHAPED)
@pytest.mark.parametrize("around", [
    "{}", "token={}", "'{}'", '{{"key": "{}"}}', "https://{}@host/x.git", "https://host/?key={}&page=2", "({}, {})",
    "a\n{}\nb", "[{}]",
])  # fmt: skip
def test_tokens_go_wherever_they_stand(secret: str, around: str) -> None:
    # AKIA ids have a fixed length, the others end where their characters end
    assert redact(around.format(secret, secret), {}) == around.format(MASK, MASK)


@pytest.mark.parametrize("text", [
    "hf_transfer and hf_hub_download", "sk-learn, task-oriented-dialogue-systems", "ghp_short", "AKIA in a word: AKIAAAA",
    "http://localhost:8888/lab", "https://host:443/a@b", "at 12:30@noon", "Bearer of bad news", "loss=0.25 at step 1200, lr 1e-4",
    "chapters/safe-residual/6-classifiers.md:12: error", "git@github.com:me/papers.git", "mail me@example.org: hello",
])  # fmt: skip
def test_ordinary_texts_stay_as_they_are(text: str) -> None:
    assert redact(text, {}) == text


@pytest.mark.parametrize(("text", "after"), [
    ("postgres://me:p%40ss@db:5432/x", "postgres://[redacted]@db:5432/x"),
    ("git+https://x:y@h/r.git@v1", "git+https://[redacted]@h/r.git@v1"),
    ("http://proxy:pw@10.0.0.1:3128", "http://[redacted]@10.0.0.1:3128"),
    ("a ftp://u:v@h b ftp://w:x@h", "a ftp://[redacted]@h b ftp://[redacted]@h"),
])  # fmt: skip
def test_passwords_in_addresses(text: str, after: str) -> None:
    assert redact(text, {}) == after


# secrets share no character with the mask, so that a trace of one can only come from the text
SECRETS = st.text("XYZW-+/9", min_size=6, max_size=10).filter(lambda value: not value.isdigit())


@given(st.dictionaries(st.sampled_from(["A_TOKEN", "B_SECRET", "C_API_KEY"]), SECRETS, min_size=1), st.data())
def test_of_several_secrets_none_is_left_wherever_they_meet(env: dict[str, str], data: st.DataObject) -> None:
    pieces = st.sampled_from([*env.values(), *SHAPED]) | st.text("XYZW-+/9 b.", max_size=4)
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    once = redact(text, env)
    assert not any(value in once for value in env.values())
    assert redact(once, env) == once


@given(st.lists(st.sampled_from(SHAPED), max_size=5), st.text("xyz .,\n", max_size=9))
def test_tokens_between_words_never_stay(tokens: list[str], word: str) -> None:
    once = redact(f" {word} ".join(tokens), {})
    assert once == f" {word} ".join([MASK] * len(tokens)) and redact(once, {}) == once


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="_-:@"), max_size=80).filter(
        lambda t: "earer " not in t and "AKIA" not in t
    )
)
def test_a_text_without_a_secret_is_unchanged(text: str) -> None:
    assert redact(text, {"MY_TOKEN": "open_sesame"}) == text
