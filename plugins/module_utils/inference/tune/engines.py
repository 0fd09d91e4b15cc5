# SPDX-License-Identifier: Apache-2.0
"""Run an engine for one smoke test: start it, wait until it generates, test it, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from .comparison import EngineRun
from .launching import signals_held

_WRONG = ("degenerate", "golden", "nan-logprobs", "not-repeatable", "leak", "malformed", "wrong-answerer")
"""Findings of the smoke test that mean wrong answers."""

_SPEED = ("below-floor", "regression")
"""Those that are about figures, which are compared here anyway. Any other critical one means that there are none: what
was measured beside requests that failed, or on a GPU that reported errors, is the speed of nothing."""


@dataclass(frozen=True)
class Engines:
    """How engines are run here. ``smoke`` is the command of the smoke test up to its options; times in seconds."""

    smoke: tuple[str, ...]
    folder: Path
    start_timeout: float = 1800.0
    test_timeout: float = 1800.0
    stop_timeout: float = 90.0

    def run(self, side: str, name: str, command: Sequence[str], environment: Mapping[str, str], port: int) -> EngineRun:
        """Run one engine with exactly ``environment`` through its test."""
        if listens(port):  # it would be the other one that is tested
            return EngineRun(side, failed=f"something else answers on port {port}")
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        with log.open("wb") as output, contextlib.ExitStack() as stack:
            with signals_held():
                process = subprocess.Popen(
                    list(command),
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                stack.callback(self._stop, process)
            why = self._until_it_generates(process, port)
            return EngineRun(side, failed=f"{why}; {_last(log)}") if why else self._test(side, name, port)

    def _until_it_generates(self, process: subprocess.Popen[bytes], port: int) -> str:
        """Return why it doesn't, or nothing. Answering is not enough: it has to generate a token.

        Nor is that: SGLang says for a second more that it isn't healthy, which its test would take for a failure.
        """
        start = time.monotonic()
        while (left := self.start_timeout - (time.monotonic() - start)) > 0:
            if process.poll() is not None:
                return f"it ended with {process.returncode} after {time.monotonic() - start:.0f} s"
            if _generates(port, left) and _healthy(port, left):
                return ""
            time.sleep(min(1.0, left))
        return f"it did not generate within {self.start_timeout:.0f} s, or was not healthy by then"

    def _test(self, side: str, name: str, port: int) -> EngineRun:
        out = self.folder / f"{name}.json"
        out.unlink(missing_ok=True)
        command = [*self.smoke, "--url", f"http://127.0.0.1:{port}", "--out", str(out)]
        try:
            subprocess.run(command, capture_output=True, check=False, timeout=self.test_timeout)
        except subprocess.TimeoutExpired:
            return EngineRun(side, failed=f"its test took longer than {self.test_timeout:.0f} s")
        try:
            report = json.loads(out.read_text())
        except (OSError, ValueError):
            return EngineRun(side, failed="the smoke test left no report")
        return judge(side, report)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask it to end, and end what is left of its session."""
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=self.stop_timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel holds; its port is then in use
            process.wait(timeout=self.stop_timeout)


def judge(side: str, report: Mapping[str, Any]) -> EngineRun:
    """Return a run from the smoke test's report: right answers come before figures."""
    critical = [finding for finding in report.get("findings", ()) if finding.get("level") == "critical"]
    wrong = next((finding for finding in critical if finding["id"] in _WRONG), None)
    if wrong:
        return EngineRun(side, wrong=f"{wrong['id']}: {wrong['what']} ({wrong['seen']})")
    serious = next((finding for finding in critical if finding["id"] not in _SPEED), None)
    if serious:
        return EngineRun(side, failed=f"{serious['id']}: {serious['what']} ({serious['seen']})")
    metrics = {name: float(value) for name, value in ((report.get("gate") or {}).get("metrics") or {}).items()}
    bad = next((name for name, value in metrics.items() if not 0 < value < float("inf")), None)
    if bad:
        return EngineRun(side, failed=f"{bad} is {metrics[bad]}")
    if metrics:
        return EngineRun(side, metrics)
    said = f"{critical[0]['id']}: {critical[0]['what']}" if critical else "the smoke test measured nothing"
    return EngineRun(side, failed=said)


def listens(port: int) -> bool:
    """Say whether anything takes connections on this machine's port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


def _ask(request: str | urllib.request.Request, seconds: float) -> Any:
    """Return the answer's JSON, {} for one that is none; None for no good answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=seconds) as answer:
            body = answer.read() if answer.status == HTTPStatus.OK else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return {}


def _generates(port: int, seconds: float) -> bool:
    body = json.dumps({"model": _model(port, seconds), "prompt": "1", "max_tokens": 1, "temperature": 0}).encode()
    url = f"http://127.0.0.1:{port}/v1/completions"
    return _ask(urllib.request.Request(url, body, {"Content-Type": "application/json"}), seconds) is not None


def _healthy(port: int, seconds: float) -> bool:
    return _ask(f"http://127.0.0.1:{port}/health", seconds) is not None


def _model(port: int, seconds: float) -> str:
    try:
        return str(_ask(f"http://127.0.0.1:{port}/v1/models", min(10.0, seconds))["data"][0]["id"])
    except (TypeError, KeyError, IndexError):
        return ""


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    wanted = [line for line in lines if "error" in line.lower()] or lines
    return " | ".join(line.strip()[:200] for line in wanted[-2:]) or "it said nothing"
