# SPDX-License-Identifier: Apache-2.0
"""Secrets go, names and ordinary text stay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import redact as module
from inference.redact import HIDDEN, may_hold_secret, redact, secret_names

SECRET = "s3cr3t-V4lue"


@pytest.mark.parametrize(
    "text",
    [
        f"--api-key {SECRET} --port 1",
        f"--api-key={SECRET}",
        f"--admin-api-key '{SECRET}'",
        f"['--api-key', '{SECRET}', '--port']",
        f"--api-key {SECRET},other,third",
        f"server_args=ServerArgs(model_path='/m', api_key='{SECRET}', port=1)",
        f"non-default args: {{'api_key': ['{SECRET}'], 'port': 8000}}",
        f'{{"api_key":"{SECRET}","x":1}}',
        f"VLLM_API_KEY={SECRET}",
        f'Environment="HF_TOKEN={SECRET}" OTHER=1',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"ssl_keyfile_password={SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"-H 'Authorization: Bearer {SECRET}'",
        f"access_token={SECRET}",
        f"--auth-token {SECRET}",
        f"huggingface-token: {SECRET}",
        f"HF_TOKEN={SECRET}",
        f"hub_token={SECRET}",
        f"db_passwd={SECRET}",
        f"client_secret={SECRET}",
        f"API_\u212aEY={SECRET}",
        f"a line that was cut: api_key='{SECRET}",
        f'a line that was cut: "api_key": "{SECRET}',
    ],
)
def test_a_secret_goes_and_its_name_stays(text):
    hidden = redact(text)
    assert may_hold_secret(f"another line\n{text}\n".encode())
    assert SECRET not in hidden and HIDDEN in hidden
    assert secret_names(text)
    assert redact(hidden) == hidden
    assert secret_names(hidden) == []


@pytest.mark.parametrize(
    "token", ["sk-abcdef0123456789", "hf_" + "a" * 30, "ghp_" + "b" * 36, "nvapi-" + "c" * 30, "gsk_" + "d" * 30]
)
def test_a_token_is_known_by_its_form(token):
    assert may_hold_secret(token.encode())
    assert token not in redact(f"the key is {token}, keep it")
    assert secret_names(f"the key is {token}") == ["a token"]


@pytest.mark.parametrize(
    "text",
    [
        "api_key=None, admin_api_key=None",
        "'api_key': '***', 'port': 1",
        '"api_key":null',
        'api_key=""',
        "VLLM_API_KEY=",
        "--api-key ${VLLM_API_KEY}",
        "--api-key $KEY",
        "LoadCredential=api_key:/etc/inference/kimi/api_key",
        "Environment=HF_TOKEN_PATH=/run/credentials/hf",
        "#token: 249, token usage: 0.00, gen throughput (token/s): 187.74",
        "tokenizer='/srv/models/kimi', tokenizer_mode='auto'",
        "num_hidden_tokens=5 key=value monkey=3",
        "Basic kernels built",
    ],
)
def test_ordinary_text_stays(text):
    assert secret_names(text) == []
    assert redact(text) == text


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_nothing_crashes_it_and_it_is_settled_after_one_pass(text):
    once = redact(text)
    assert redact(once) == once


PIECES = (
    *("hf", "hub", "face", "hugging", "api", "auth", "access", "secret", "Bearer", "token", "key", "password"),
    *("sk", "nvapi", "gsk", "ghp", "AKIA", "_", "-", "--", "=", ":", " ", "'", "\u212a", "x" * 20, "A1" * 8, "7"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(max_examples=500, deadline=None)
def test_where_no_hint_is_seen_there_is_no_secret(text):
    if not may_hold_secret(text.encode()):
        assert redact(text) == text
        assert not any(
            pattern.search(text) for pattern in (module._FLAG, module._SETTING, module._HEADER, module._TOKEN)
        )


def test_what_a_serving_engine_prints_is_not_searched():
    """Else the search for hints costs and saves nothing."""
    batch = b"[2026-11-30 04:59:15 TP0] Prefill batch, #new-seq: 1, #new-token: 1, input throughput (token/s): 3.28"
    access = b'INFO:     127.0.0.1:33548 - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    assert not may_hold_secret(batch + b"\n" + access)
