# SPDX-License-Identifier: Apache-2.0
"""A stand-in for an inference engine, for tests of what supervises one. It generates nothing: it counts words.

It has the parts that a supervisor meets: a main process with an HTTP server, a scheduler process without which no
request is answered, more workers (one may leave the process tree as a daemon does), log lines in the wording of
SGLang, and the faults of real engines, one option each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OPTIONS = argparse.Namespace()
CHILDREN: list[int] = []


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--host", default="127.0.0.1")
    option("--port", type=int, required=True)
    option("--model", default="stand-in")
    # starting
    option("--load-seconds", type=float, default=0.0, help="time between the start and listening, with output")
    option("--hang", choices=("quiet", "spin"), help="never listen: without CPU time, or with nothing but CPU time")
    option("--say", action="append", default=[], help="print this line first; may be repeated")
    option("--say-bytes", type=int, default=0, help="print so many bytes without a line end")
    option("--show-environment", action="store_true")
    option("--die-in-load", type=int, metavar="STATUS", help="end with this status instead of listening")
    option("--no-listener", action="store_true", help="stay alive without ever listening")
    option("--never-ready", action="store_true", help="/health answers 503 for ever")
    # generating
    option("--answer", choices=("text", "empty", "no-tokens", "error", "unauthorised"), default="text")
    option("--key", action="store_true", help="require the key in $STAND_IN_KEY and print it, as SGLang's banner does")
    option("--chunk-seconds", type=float, default=0.3, help="time that each word 'chunk' of a prompt takes to prefill")
    option("--silent", action="store_true", help="no line about batches")
    option("--no-metrics", action="store_true")
    # workers
    option("--workers", type=int, default=0, help="idle workers besides the scheduler")
    option("--daemon", action="store_true", help="one more worker in a session of its own, orphaned on purpose")
    # faults after READY, which is taken from the first completion
    option("--exit-after", type=float)
    option("--exit-status", type=int, default=0)
    option("--freeze-after", type=float, help="stop the scheduler; /health goes on answering 200")
    option("--kill-after", type=float, help="kill the scheduler and do nothing about it")
    # ending
    option(
        "--on-term", choices=("drain", "ignore", "exit"), default="exit", help="drain: as SGLang, SIGKILL at its end"
    )
    return parser.parse_args()


def log(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, text.encode() + b"\n")


# ---- the scheduler: its own process, so that it can be stopped and killed


class Scheduler:
    """Answers one request after the other: ``count words, prefilling each 'chunk' slowly``."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self.progress_in, progress_out = os.pipe()
        self.pid = fork_worker(lambda: self._serve(theirs, progress_out))
        theirs.close()
        os.close(progress_out)
        self._replies = self._ours.makefile("r")
        self._lock = threading.Lock()
        self.tokens = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _serve(self, channel: socket.socket, progress: int) -> None:
        for line in channel.makefile("r"):
            words = json.loads(line).split()
            for _ in range(words.count("chunk")):
                time.sleep(OPTIONS.chunk_seconds)
                os.write(progress, b".")
                if not OPTIONS.silent:
                    log("[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #running-req: 1")
            os.write(progress, b".")
            channel.sendall(b"done\n")

    def _count(self) -> None:
        while chunk := os.read(self.progress_in, 4096):
            self.tokens += len(chunk)

    def generate(self, prompt: str) -> bool:
        with self._lock, contextlib.suppress(OSError):
            self._ours.sendall(json.dumps(prompt).encode() + b"\n")
            return self._replies.readline() == "done\n"
        return False


def fork_worker(work) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            work()
        finally:
            os._exit(0)
    CHILDREN.append(pid)
    return pid


def fork_daemon() -> None:
    """Leave the process tree the way a daemon does: a new session, and a parent that ends."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() == 0:
        log(f"stand-in: daemon pid={os.getpid()}")
        time.sleep(600)
    os._exit(0)


# ---- HTTP


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    scheduler: Scheduler
    running = 0
    draining = False
    first = threading.Event()

    def log_request(self, code: object = "-", size: object = "-") -> None:  # noqa: ARG002 - as the base class has it
        log(f'INFO:     {self.client_address[0]}:0 - "{self.command} {self.path} HTTP/1.1" {int(code)} OK')

    def reply(self, status: int, body: object = "", kind: str = "application/json") -> None:
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(503 if OPTIONS.never_ready or Handler.draining else 200)
        elif self.path == "/health_generate":
            self.reply(200 if self.scheduler.generate("health") else 503)
        elif self.path == "/ready":
            self.reply(503 if Handler.draining else 200)
        elif self.path == "/v1/models":
            self.reply(200, {"data": [{"id": OPTIONS.model}]})
        elif self.path == "/get_server_info":
            self.reply(200, {"model_path": OPTIONS.model, "version": "stand-in"})
        elif self.path == "/metrics" and not OPTIONS.no_metrics:
            count = f'sglang:prompt_tokens_total{{model_name="{OPTIONS.model}"}} {self.scheduler.tokens}.0\n'
            self.reply(200, count + f"sglang:num_requests_total {Handler.running}.0\n", "text/plain")
        else:
            self.reply(404, {"error": "not found"})

    def do_POST(self) -> None:
        wish = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions" or wish.get("model") != OPTIONS.model:
            self.reply(404, {"error": f"no model {wish.get('model')}"})
        elif OPTIONS.answer == "unauthorised" or (OPTIONS.key and not self.has_key()):
            self.reply(401, {"error": "unauthorised"})
        elif OPTIONS.answer == "error":
            self.reply(500, {"error": "Internal Server Error"})
        else:
            self.complete(wish)

    def has_key(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {os.environ['STAND_IN_KEY']}"

    def complete(self, wish: dict) -> None:
        Handler.running += 1
        try:
            done = self.scheduler.generate(wish["prompt"])
            if not done:
                self.reply(500, {"error": "no scheduler"})
                return
            tokens = 0 if OPTIONS.answer == "no-tokens" else wish["max_tokens"]
            text = "" if OPTIONS.answer == "empty" else " word" * tokens
            usage = {"prompt_tokens": len(wish["prompt"].split()), "completion_tokens": tokens}
            with contextlib.suppress(OSError):
                self.reply(200, {"choices": [{"text": text, "finish_reason": "length"}], "usage": usage})
            if not Handler.first.is_set():
                log(f"stand-in: first completion at {time.monotonic()}")
            Handler.first.set()
        finally:
            Handler.running -= 1


# ---- its life


def start_faults(scheduler: Scheduler) -> None:
    """Let the fault that was asked for happen some time after the first completion."""

    def after(seconds: float | None, act) -> None:
        if seconds is not None:
            threading.Thread(target=lambda: (Handler.first.wait(), time.sleep(seconds), act()), daemon=True).start()

    after(OPTIONS.exit_after, lambda: os._exit(OPTIONS.exit_status))
    after(OPTIONS.freeze_after, lambda: os.kill(scheduler.pid, signal.SIGSTOP))
    after(OPTIONS.kill_after, lambda: os.kill(scheduler.pid, signal.SIGKILL))


def drain() -> None:
    """End as SGLang does: finish what runs, then SIGKILL for its whole process tree, itself included."""
    log("[2026-01-01 00:00:00] Gracefully exiting... Remaining number of requests 0")
    Handler.draining = True
    while Handler.running:
        time.sleep(0.05)
    log("[2026-01-01 00:00:00] stand-in: drained")
    for pid in [*CHILDREN, os.getpid()]:
        os.kill(pid, signal.SIGKILL)


def obey_term() -> None:
    if OPTIONS.on_term == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif OPTIONS.on_term == "drain":
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=drain).start())
    else:
        signal.signal(signal.SIGTERM, lambda *_: (log("stand-in: exit on TERM"), os._exit(0)))


def speak_first() -> None:
    if OPTIONS.show_environment:
        log("stand-in: environment " + " ".join(sorted(os.environ)))
    if OPTIONS.key:
        log(f"server_args=ServerArgs(model_path='m', api_key='{os.environ['STAND_IN_KEY']}', port={OPTIONS.port})")
    for line in OPTIONS.say:
        log(line)
    left = OPTIONS.say_bytes
    while left > 0:
        left -= os.write(1, b"x" * min(left, 65536))
    if OPTIONS.say_bytes:
        log("")


def load() -> None:
    log("[2026-01-01 00:00:00 TP0] Init torch distributed begin.")
    log("[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=93.00 GB")
    until = time.monotonic() + OPTIONS.load_seconds
    while time.monotonic() < until:
        time.sleep(0.2)
        os.write(2, b"\rLoading safetensors checkpoint shards:  50% Completed | 4/8 [00:01<00:01]")
    if OPTIONS.load_seconds:
        log("")
    if OPTIONS.die_in_load is not None:
        sys.exit(OPTIONS.die_in_load)
    while OPTIONS.hang:
        if OPTIONS.hang == "quiet":
            time.sleep(600)
    while OPTIONS.no_listener:
        time.sleep(0.2)
        log("stand-in: alive")


def main() -> None:
    global OPTIONS  # noqa: PLW0603 - set once, before anything reads it
    OPTIONS = parse()
    obey_term()
    speak_first()
    load()
    scheduler = Scheduler()
    log(f"stand-in: scheduler pid={scheduler.pid}")
    for _ in range(OPTIONS.workers):
        log(f"stand-in: worker pid={fork_worker(lambda: time.sleep(600))}")
    if OPTIONS.daemon:
        fork_daemon()
    Handler.scheduler = scheduler
    server = ThreadingHTTPServer((OPTIONS.host, OPTIONS.port), Handler)
    server.daemon_threads = True
    log(f"INFO:     Uvicorn running on http://{OPTIONS.host}:{OPTIONS.port} (Press CTRL+C to quit)")
    start_faults(scheduler)
    server.serve_forever()


if __name__ == "__main__":
    main()
