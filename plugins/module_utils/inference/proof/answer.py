# SPDX-License-Identifier: Apache-2.0
"""What the engine answers when it is asked for its own settings."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Mapping
from typing import Any

TIMEOUT_S = 10.0
MOST_BYTES = 4 * 1024 * 1024
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach an engine that listens everywhere

PATHS: Mapping[str, tuple[str, ...]] = {
    "sglang": ("/server_info", "/get_server_info"),
    "vllm": ("/version",),
}
"""Where each engine tells of itself, the newest name first: SGLang 0.5.23 warns when it is asked by the old one.
vLLM tells its settings over HTTP in development mode only; its journal has them."""

Get = Callable[[str], "dict[str, Any] | str"]
"""Takes a path; returns the JSON object, or why there is none."""


def ask(engine: str, get: Get) -> tuple[dict[str, Any] | None, str]:
    """Return what the engine says of itself, or None and why."""
    why = f"{engine} is no engine that is known here"
    for path in PATHS.get(engine, ()):
        said = get(path)
        if isinstance(said, dict):
            return said, ""
        why = f"{path}: {said}"
    return None, why


def getter(host: str, port: int, key: str | None = None) -> Get:
    """Return a function that asks the engine at this address. The key is never part of an answer."""

    def get(path: str) -> dict[str, Any] | str:
        connection = http.client.HTTPConnection(ANYWHERE.get(host, host), port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"} if key else {})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                return f"status {answer.status}"
            document = json.loads(answer.read(MOST_BYTES))
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            return f"no answer ({type(error).__name__})"
        finally:
            connection.close()
        return document if isinstance(document, dict) else "no JSON object"

    return get
