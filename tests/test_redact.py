# SPDX-License-Identifier: Apache-2.0
"""Secrets go, names and ordinary text stay."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.redact import HIDDEN, redact, secret_names

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
    ],
)
def test_a_secret_goes_and_its_name_stays(text):
    hidden = redact(text)
    assert SECRET not in hidden and HIDDEN in hidden
    assert secret_names(text)
    assert redact(hidden) == hidden
    assert secret_names(hidden) == []


@pytest.mark.parametrize("token", ["sk-abcdef0123456789", "hf_" + "a" * 30, "ghp_" + "b" * 36, "nvapi-" + "c" * 30])
def test_a_token_is_known_by_its_form(token):
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
