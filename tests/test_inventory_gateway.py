# SPDX-License-Identifier: Apache-2.0
"""A gateway's settings: a right inventory is quiet, and each mistake has its own finding, without a secret in it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from loading import load

from inference import inventory, inventory_gateway
from inference.inventory_gateway import Upstream

ROOT = Path(__file__).resolve().parent.parent
SECRET = "A-very-secret-key-of-somebody"

UPSTREAMS = [
    Upstream(host, address, {"name": "chat", "port": 30000, "host": address})
    for host, address in (("gpu-1", "10.0.0.11"), ("gpu-2", "10.0.0.12"))
]


@pytest.fixture(scope="module")
def known() -> inventory.Known:
    """Return what the roles of this project really document, default to and bring."""
    filters = load("inference_filters", ROOT / "plugins/filter/inference.py")
    found: inventory.Known = filters._known()
    return found


def made(folder: Path, name: str) -> tuple[str, str]:
    """Return a new certificate and its key."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.crt")]
    subprocess.run([*words, "-subj", f"/CN={name}", *files], check=True, capture_output=True, timeout=60)
    return (folder / f"{name}.crt").read_text(), (folder / f"{name}.key").read_text()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("tls")
    return [made(folder, name) for name in ("one", "other")]


@pytest.fixture
def right(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    certificate, key = pairs[0]
    return {
        "ansible_host": "10.0.0.2",
        "gateway_certificate": certificate,
        "gateway_certificate_key": key,
        "gateway_keys": {"team-a": SECRET},
    }


def check(variables: dict[str, Any], known: Any, upstreams: Any = UPSTREAMS, host: str = "gw") -> list[Any]:
    return inventory.check_gateway(variables, known, upstreams, host)


def test_a_right_gateway_is_quiet(known: Any, right: dict[str, Any]):
    assert check(right, known) == []


def test_the_defaults_lack_what_only_the_operator_has(known: Any):
    found = [finding.id for finding in check({}, known)]
    assert found == ["gateway-keys", "gateway-certificate", "gateway-certificate"]


@pytest.mark.parametrize(
    "case",
    [
        ("gateway_prot", 443, "variable-unknown", "gateway_port"),
        ("gateway_port", "443", "variable-value", "a whole number"),
        ("gateway_port", 0, "gateway-port", "1 to 65535"),
        ("gateway_router_port", 443, "gateway-port", "1024 to 65535"),
        ("gateway_metrics_port", 30100, "gateway-port", "as gateway_router_port"),
        ("gateway_policy", "sticky", "variable-value", "cache_aware"),
        ("gateway_silence", 0, "gateway-value", "1 or more"),
        ("gateway_drain", -1, "gateway-value", "0 or more"),
        ("gateway_python", "python3", "gateway-value", "absolute path"),
        ("gateway_python_version", "3", "gateway-value", "in quotes"),
        ("gateway_router_version", "9.9.9", "gateway-release", "sglang-router-0.3.2-cpu-cp312"),
        ("gateway_address", "chat.example.com", "gateway-address", "0.0.0.0 or ::"),
        ("gateway_address", "10.0.0.0/8", "gateway-address", "0.0.0.0 or ::"),
        ("gateway_scrapers", ["10.0.0.0/8", "prometheus"], "gateway-address", "gateway_scrapers[1]"),
        ("gateway_keys", {}, "gateway-keys", "gateway_anonymous: true"),
        ("gateway_keys", {"team a": SECRET}, "gateway-client", "team a"),
        ("gateway_keys", {"a": SECRET + " "}, "gateway-key-form", "16 or more"),
        ("gateway_keys", {"a": "short"}, "gateway-key-form", "not shown"),
        ("gateway_keys", {"a": 1234567890123456}, "gateway-key-form", "in quotes"),
        ("gateway_keys", {"a": SECRET, "b": SECRET}, "gateway-key-twice", "the key of a"),
        ("gateway_keys", {SECRET: "team-a"}, "gateway-key-form", "gateway_keys, entry 1"),
        ("gateway_keys", [SECRET], "variable-value", "a mapping"),
        ("gateway_keys", SECRET, "variable-value", "not shown"),
        ("gateway_certificate", "/etc/tls.crt", "gateway-certificate", "BEGIN CERTIFICATE"),
        ("gateway_certificate_key", SECRET, "gateway-certificate", "BEGIN PRIVATE KEY"),
        ("gateway_certificate_key", 5, "variable-value", "not shown"),
    ],
)
def test_a_mistake_has_its_finding(known: Any, right: dict[str, Any], case: tuple[str, Any, str, str]):
    variable, value, finding_id, said = case
    found = check({**right, variable: value}, known)
    assert [finding.id for finding in found] == [finding_id]
    text = str(found[0].as_dict())
    assert said in text
    assert SECRET not in text
    assert "short'" not in text


def test_whoever_may_ask_needs_no_key(known: Any, right: dict[str, Any]):
    assert check({**right, "gateway_keys": {}, "gateway_anonymous": True}, known) == []


def test_a_certificate_and_a_key_that_do_not_belong_together(
    known: Any,
    right: dict[str, Any],
    pairs: list[tuple[str, str]],
):
    (finding,) = check({**right, "gateway_certificate_key": pairs[1][1]}, known)
    assert (finding.id, finding.seen) == ("gateway-certificate", "OpenSSL says KEY_VALUES_MISMATCH")
    assert not set(pairs[1][1].splitlines()[1:-1]) & set(str(finding.as_dict()).splitlines())


def test_a_certificate_that_was_cut_off(known: Any, right: dict[str, Any]):
    cut = right["gateway_certificate"][:120]
    assert [finding.id for finding in check({**right, "gateway_certificate": cut}, known)] == ["gateway-certificate"]


def test_an_instance_on_loopback_is_out_of_reach_except_of_its_own_host(known: Any, right: dict[str, Any]):
    there = [Upstream("gpu-1", "10.0.0.11", {"name": "chat", "port": 30000})]
    (finding,) = check(right, known, there)
    assert (finding.id, "chat of gpu-1" in finding.what, "10.0.0.11" in finding.fix) == ("gateway-reach", True, True)
    assert check(right, known, there, host="gpu-1") == []


def test_two_instances_at_one_address(known: Any, right: dict[str, Any]):
    there = [Upstream(name, "10.0.0.11", {"name": "chat", "port": 30000, "host": "0.0.0.0"}) for name in ("a", "b")]
    (finding,) = check(right, known, there)
    assert (finding.id, finding.seen) == ("gateway-same-address", "http://10.0.0.11:30000: chat of a and chat of b")


def test_a_port_of_an_instance_of_the_same_host_is_taken(known: Any, right: dict[str, Any]):
    there = [Upstream("gw", "10.0.0.2", {"name": "chat", "port": 30100, "host": "10.0.0.2"})]
    (finding,) = check(right, known, there)
    assert (finding.id, finding.seen) == ("gateway-port", "30100, as the instance chat of gw")
    assert check(right, known, there, host="another") == []


def test_every_finding_is_made_here():
    text = Path(inventory_gateway.__file__ or "").read_text()
    ids = set(re.findall(r'(?:_wrong|Finding)\(\s*"([a-z-]+)"', text))
    assert len(ids) == 11
    assert [finding_id for finding_id in sorted(ids) if f'"{finding_id}"' not in Path(__file__).read_text()] == []
