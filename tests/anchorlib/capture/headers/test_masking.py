"""What the header keeps of secrets: nothing; and of everything else: all of it."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import anchorlib
from anchorlib.capture.headers.masking import masked, masked_text, masked_value
from anchorlib.errors import OptionError
from tests.seeds import examples
from tests.server.processes import bare_environment
from tests.warm import warm_python

NAMES = [
    *("password", "db_password", "PASSWORD_STAGING", "pgpassword", "passphrase", "pw", "pwd"),
    *("token", "hf-token", "HF_TOKEN", "auth_token", "accessToken", "access_tokens"),
    *("wandb-key", "WANDB_API_KEY", "api_keys", "apikey", "aws.key", "aws_secret_access_key"),
    *("hf_auth", "authorization", "oauth", "client_secret", "credentials", "cookie", "s3.pass"),
]
BENIGN = [
    *("key_dim", "num_tokens", "max_new_tokens", "tokenizer", "token_type", "auth_mode"),
    *("image_key", "sort-key", "pad_token", "eos.token", "primary_key", "author", "keys", "passes"),
    *("low_pass", "n_tokens", "mask_token", "key_layer", "keyboard", "monkey", "compass", "lr"),
]
# Nothing that could stand in a name or in a benign value by chance.
SECRETS = st.text("ABCxyz019_-+/=.!$%*", min_size=6, max_size=40).map(lambda text: f"Zq{text}7")
WORDS = st.from_regex(r"[a-z][a-z0-9_./]{0,12}", fullmatch=True)
NUMBERS = st.one_of(st.integers(0, 10**6), st.floats(0, 1)).map(str)


def names(of: list[str]) -> st.SearchStrategy[str]:
    return st.sampled_from(of)


@st.composite
def said(draw: st.DrawFn) -> tuple[list[str], str]:
    """Arguments that give a secret a name, in any of the forms that people use; and the secret."""
    name, secret = draw(names(NAMES)), draw(SECRETS)
    return draw(
        st.sampled_from(
            [
                [f"--{name}", secret],
                [f"--{name}={secret}"],
                [f"-{name}", secret],
                [f"{name}={secret}"],
                [f"+{name}={secret}"],
                ["--env", f"{name}={secret}"],
                [f"--env={name}={secret}"],
                [f"--set=a=1,{name}={secret}"],
                ["--header", f"{name}: {secret}"],
                ["--config", json.dumps({"lr": 0.1, "nested": [{name: secret}]})],
                ["--config", str({"lr": 0.1, name: secret})],
                [f"https://host/path?page=2&{name}={secret}"],
                ["-lc", f"export {name}={secret}; python train.py"],
                ["-lc", f"python train.py --lr 1 --{name} {secret} --seed 3"],
                ["--authorization", "Bearer", secret],
                ["--authorization", f"Bearer {secret}"],
                ["-H", f"Authorization: Bearer {secret}"],
            ]
        )
    ), secret


@settings(max_examples=examples(40))
@given(said(), st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=3))
def test_a_secret_that_has_a_name_is_never_in_the_command(given_, before, after):
    arguments, secret = given_
    shown = masked(["train.py", *before, *arguments, *after])
    assert secret not in " ".join(shown)
    assert "***" in " ".join(shown)
    assert shown[: 1 + len(before)] == ["train.py", *before]
    assert shown[len(shown) - len(after) :] == after


@given(
    SECRETS, st.sampled_from(["postgres", "https", "redis", "grpc"]), st.sampled_from(["me", ""])
)
def test_the_password_of_an_address_is_masked_and_the_rest_is_readable(secret, scheme, user):
    assume("/" not in secret or not secret.split("/")[0].removeprefix("Zq").isdigit())
    for typed in (
        [f"{scheme}://{user}:{secret}@db.host:5432/x"],
        ["--url", f"{scheme}://{user}:{secret}@h"],
    ):
        shown = masked(typed)
        assert secret not in shown[-1]
        assert shown[-1].startswith(f"{scheme}://{user}:***@")


@pytest.mark.parametrize(
    "token",
    [
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        "hf_abcdefghijklmnopqrstuvwxyzabcdefgh",
        "sk-proj-a1B2c3D4e5F6g7H8",
        "sk-ant-api03-abcdefgh",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0abcdefghij_xyz",
        "AKIAIOSFODNN7EXAMPLE",
        "xoxb-123456789012-abcdefABCDEF",
        "xoxe.xoxp-1-abcdefghij",
        "glpat-abc123DEF456ghi789jk",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
    ],
)
@pytest.mark.parametrize(
    "form", ["{}", "--login={}", "https://{}@github.com/x", "user:{}", "a,{},b"]
)
def test_a_token_of_a_known_form_is_masked_wherever_it_stands(token, form):
    assert token not in masked([form.format(token)])[0]
    assert "***" in masked([form.format(token)])[0]


@pytest.mark.slow
@given(st.lists(st.tuples(names(BENIGN), st.one_of(WORDS, NUMBERS)), max_size=6), st.booleans())
def test_what_is_no_secret_stays_readable(options, equals):
    typed = ["python", "-m", "pkg.train", "grpc://node:50051/run1", "git@github.com:x/y.git"]
    for name, value in options:
        typed += [f"--{name}={value}"] if equals else [f"--{name}", value]
    assert masked(typed) == typed


@pytest.mark.parametrize(
    "typed",
    [
        ["--tokenizer", "gpt2"],
        ["--num_tokens", "5"],
        ["--key_dim", "64"],
        ["--use_auth_token", "True"],
        ["--token", "--lr", "0.1"],
        ["--model", "hf_transformers", "--task", "sk-learn-baseline"],
        ["model.key_dim=64", "data.tokens=1e9", "train.pass=2"],
        ["http://localhost:8080/path@v2", "s3://bucket/step=5/part-0.parquet"],
        ["--filter", "step: 5, key: 3", "--note", "the key is here"],
        ["--layers", "[1, 2]", "--opt", '{"name": "adam", "key_dim": 8}'],
    ],
)
def test_names_that_only_look_like_secrets_are_not_masked(typed):
    assert masked(typed) == typed


def test_what_is_masked_is_the_value_alone():
    line = "train.py --api-key s3cret --token=abc --lr 0.1 --password-file f --wandb-key=1 run"
    assert masked(line.split())[1:] == [
        *("--api-key", "***", "--token=***", "--lr", "0.1"),
        *("--password-file", "***", "--wandb-key=1", "run"),
    ]


def test_the_value_of_a_secret_variable_is_masked_wherever_it_stands(monkeypatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "correct horse battery")
    monkeypatch.setenv("PWD", "/home/me/project")
    assert masked(["login", "x-correct horse battery-y"]) == ["login", "x-***-y"]
    assert masked(["/home/me/project/train.py"]) == ["/home/me/project/train.py"]


@given(names(NAMES), SECRETS, st.integers(0, 3))
def test_a_configuration_is_kept_without_its_secrets(name, secret, depth):
    config = {
        "lr": 0.1,
        "layers": [1, 2],
        name: secret,
        "url": f"db://me:{secret}@host",
        "none": None,
    }
    for _ in range(depth):
        config = {"inner": [config]}
    shown = json.dumps(masked_value("config", config))
    assert secret not in json.loads(json.dumps(shown))
    assert "0.1" in shown
    assert "[1, 2]" in shown


@given(st.text(max_size=200))
def test_any_text_can_be_masked_and_masking_again_changes_nothing(text):
    once = masked_text(text)
    assert masked_text(once) == once


@pytest.mark.slow
def test_a_long_argument_is_masked_in_one_go():
    for text in ("a" * 10**6, "=" * 10**5, "a=" * 10**5, "://" * 10**4, "bearer " * 10**4):
        masked_text(text)


@pytest.mark.slow
def test_a_run_keeps_no_secret_of_its_command_or_its_attributes(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        "import sys, anchorlib\n"
        "config = {'wandb': {'key': 'Zq-c0nfig'}, 'db': 'pg://me:Zq-c0nfig@host', 'lr': 0.1}\n"
        "anchorlib.start('run1', store=sys.argv[1], attributes={'config': config}).close()\n"
    )
    typed = "--wandb-key=Zq-4rgv --pw Zq-4rgv --lr 0.1 pg://me:Zq-4rgv@host"
    store = tmp_path / "store"
    subprocess.run(
        [warm_python(), str(program), str(store), *shlex.split(typed)],
        check=True,
        env=bare_environment(),
    )
    header = anchorlib.open_run("run1", store).header()
    assert header["command"][3:] == shlex.split(typed.replace("Zq-4rgv", "***"))
    assert header["user.config"] == {"wandb": {"key": "***"}, "db": "pg://me:***@host", "lr": 0.1}
    kept = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
    assert not [found for found in kept if b"Zq-" in found]


def test_attributes_that_are_nested_without_end_are_refused_in_one_line(tmp_path):
    endless: dict[str, object] = {}
    endless["again"] = endless
    with pytest.raises(OptionError, match="nested more than 64 deep") as refused:
        anchorlib.start("run1", store=tmp_path, attributes=endless)
    assert "\n" not in str(refused.value)
