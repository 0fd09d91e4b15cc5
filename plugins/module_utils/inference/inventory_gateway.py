# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a gateway's settings, by themselves and against the instances that its router is to reach."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import gateway
from .findings import Finding
from .program import nearest
from .releases.locks import python_tag

MINIMUM: Mapping[str, int] = {
    "gateway_silence": 1,
    "gateway_drain": 0,
    "gateway_ready_timeout": 1,
    "gateway_request_size": 1,
    "gateway_health_interval": 1,
    "gateway_health_failures": 1,
}
"""The smallest number that makes sense."""

PORTS: Mapping[str, int] = {"gateway_port": 1, "gateway_router_port": 1024, "gateway_metrics_port": 1024}
"""Ports of a gateway, and the lowest that whoever binds it may: the router has no privileges."""

FORMS: Mapping[str, tuple[str, str]] = {
    "gateway_python_version": (r"3\.[0-9]+", "a Python such as 3.12, in quotes"),
    "gateway_python": (r"auto|/.+", "auto, or the interpreter's absolute path on the host"),
}

CLIENT = re.compile(r"[A-Za-z0-9_.-]+")
KEY = re.compile(r"[A-Za-z0-9_-]{16,}")
KEY_EXPECTED = "a text of 16 or more letters, digits, - and _, in quotes (openssl rand -hex 24)"

CERTIFICATE = "-----BEGIN CERTIFICATE-----"
PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----")


@dataclass(frozen=True)
class Upstream:
    """An instance that the gateways are to reach: the name of its host, the host's address, its entry."""

    host: str
    address: str
    instance: Mapping[str, Any]

    @property
    def name(self) -> str:
        """How people are told of it."""
        return f"{self.instance['name']} of {self.host}"


def check(
    settings: Mapping[str, Any], locks: Collection[str], upstreams: Sequence[Upstream], host: str
) -> list[Finding]:
    """Return what is wrong with the gateway on ``host``. ``settings`` have the right types; what is missing is unknown.

    ``locks`` are the names of the locks that there are.
    """
    found = [finding for rule in RULES for finding in rule(settings)]
    return [*found, *_release(settings, locks), *_ports(settings, upstreams, host), *_pool(upstreams, host)]


def _wrong(finding_id: str, where: str, seen: object, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", f"{where} cannot be used", seen=str(seen), expected=expected, fix=f"Change {where}."
    )


def _values(settings: Mapping[str, Any]) -> Iterator[Finding]:
    for name, least in MINIMUM.items():
        if name in settings and settings[name] < least:
            yield _wrong("gateway-value", name, settings[name], f"{least} or more")
    for name, (pattern, expected) in FORMS.items():
        if name in settings and not re.fullmatch(pattern, settings[name]):
            yield _wrong("gateway-value", name, repr(settings[name]), expected)


def _addresses(settings: Mapping[str, Any]) -> Iterator[Finding]:
    given = {"gateway_address": settings.get("gateway_address")}
    given |= {f"gateway_scrapers[{i}]": entry for i, entry in enumerate(settings.get("gateway_scrapers", []))}
    for where, value in given.items():
        try:
            if value is not None:
                ipaddress.ip_network(value, strict=False) if where != "gateway_address" else ipaddress.ip_address(value)
        except ValueError:
            expected = (
                "an address of this host, 0.0.0.0 or ::" if where == "gateway_address" else "an address or a network"
            )
            yield _wrong("gateway-address", where, repr(value), expected)


def _keys(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Somebody may ask, and not everybody unless that is wanted. No key is ever shown."""
    keys = settings.get("gateway_keys", {})
    if settings.get("gateway_anonymous") is False and "gateway_keys" in settings and not keys:
        expected = "a key for each client in gateway_keys, or gateway_anonymous: true"
        yield _wrong("gateway-keys", "gateway_keys", "no key, and gateway_anonymous is false", expected)
    owners: dict[Any, str] = {}
    for number, (name, key) in enumerate(keys.items(), 1):
        usable = isinstance(key, str) and KEY.fullmatch(key)
        # a name that looks like a key, with something else as its key: the two may have changed places
        where = f"gateway_keys.{name}" if usable or not KEY.fullmatch(str(name)) else f"gateway_keys, entry {number}"
        if not CLIENT.fullmatch(str(name)):
            yield _wrong("gateway-client", where, repr(name), "a name of letters, digits, _ . and -: the log has it")
        if not usable:
            yield _wrong("gateway-key-form", where, "a key of another form (not shown)", KEY_EXPECTED)
        elif key in owners:
            yield _wrong("gateway-key-twice", where, f"the key of {owners[key]}", "a key of its own for each client")
        else:
            owners[key] = str(name)


def _certificate(settings: Mapping[str, Any]) -> Iterator[Finding]:
    chain, key = settings.get("gateway_certificate"), settings.get("gateway_certificate_key")
    if chain is not None and CERTIFICATE not in chain:
        yield _wrong("gateway-certificate", "gateway_certificate", f"{len(chain)} letters", f"PEM: {CERTIFICATE} …")
    if key is not None and not PRIVATE_KEY.search(key):
        seen = f"{len(key)} letters (not shown)"
        yield _wrong("gateway-certificate", "gateway_certificate_key", seen, "PEM: -----BEGIN PRIVATE KEY----- …")
    elif chain is not None and key is not None and CERTIFICATE in chain:
        said = _complaint(chain, key)
        if said:
            expected = "a certificate, its own first, with the private key that belongs to it, without a passphrase"
            yield _wrong("gateway-certificate", "gateway_certificate with its key", f"OpenSSL says {said}", expected)


def _complaint(chain: str, key: str) -> str:
    """Return what OpenSSL says against a certificate with its key; nothing when it takes them. No disk sees the key."""
    if not hasattr(os, "memfd_create"):
        return ""
    with _in_memory(chain) as one, _in_memory(key) as other:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(one, other, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            return getattr(error, "reason", None) or str(error)
    return ""


@contextlib.contextmanager
def _in_memory(text: str) -> Iterator[str]:
    handle = os.memfd_create("gateway")
    try:
        os.write(handle, text.encode())
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


RULES = (_values, _addresses, _keys, _certificate)
"""Checks of the settings by themselves."""


def _release(settings: Mapping[str, Any], locks: Collection[str]) -> Iterator[Finding]:
    version, python = settings.get("gateway_router_version"), settings.get("gateway_python_version")
    if version is None or python is None or not re.fullmatch(FORMS["gateway_python_version"][0], python):
        return
    name = f"sglang-router-{version}-cpu-{python_tag(python)}"
    if name not in locks:
        there = sorted(lock for lock in locks if lock.startswith("sglang-router-"))
        yield Finding(
            "gateway-release", "critical", "There is no lock for this router and Python", seen=name,
            expected=f"one of {', '.join(there) or 'none'}{nearest(name, locks)}",
            fix="Change gateway_router_version or gateway_python_version, or make the lock: scripts/lock make NAME.",
        )  # fmt: skip


def _ports(settings: Mapping[str, Any], upstreams: Sequence[Upstream], host: str) -> Iterator[Finding]:
    taken = {
        upstream.instance["port"]: f"the instance {upstream.name}" for upstream in upstreams if upstream.host == host
    }
    for name, least in PORTS.items():
        port = settings.get(name)
        if port is None:
            continue
        if not least <= port <= 65535:  # noqa: PLR2004 - the highest port there is
            yield _wrong("gateway-port", name, port, f"{least} to 65535")
        elif port in taken:
            yield _wrong("gateway-port", name, f"{port}, as {taken[port]}", "a port that nothing else on this host has")
        taken.setdefault(port, name)


def _pool(upstreams: Sequence[Upstream], host: str) -> Iterator[Finding]:
    """Look whether the gateway reaches every instance at an address of its own, by which the pool knows it."""
    urls: dict[str, str] = {}
    for upstream in upstreams:
        try:
            url = gateway.address(upstream.instance, upstream.address, same_host=upstream.host == host)
        except gateway.GatewayError:
            listens = upstream.instance.get("host") or gateway.LOOPBACK[0]
            yield Finding(
                "gateway-reach", "critical", f"The gateway cannot reach {upstream.name}",
                seen=f"it listens on {listens}", expected="an address that the gateway reaches",
                fix=f"Give the instance a host, such as {{{{ ansible_host }}}} ({upstream.address}).",
            )  # fmt: skip
            continue
        if url in urls:
            yield Finding(
                "gateway-same-address", "critical", "Two instances have the same address for the gateways",
                seen=f"{url}: {urls[url]} and {upstream.name}", expected="an address and port of its own for each",
                fix="Give each host its own address ({{ ansible_host }}), and each instance of a host its port.",
            )  # fmt: skip
        urls.setdefault(url, upstream.name)
