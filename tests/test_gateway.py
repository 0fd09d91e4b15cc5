# SPDX-License-Identifier: Apache-2.0
"""The pool of a gateway: what is asked of the router, what is waited for, and what is refused.

The router here is scripted after what sglang-router 0.3.2 answered when it was asked the same (docs/gateway.md).
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from loading import load

from inference import gateway
from inference.gateway import GatewayError

ROOT = Path(__file__).resolve().parent.parent
A, B = "http://10.0.0.1:30000", "http://10.0.0.2:30000"


class StandInRouter:
    """Answers as the router does: it takes engines and gives them up a moment after it was asked."""

    def __init__(self, *urls: str, ill: tuple[str, ...] = ()) -> None:
        self.there = {url: f"id-{n}" for n, url in enumerate(urls)}
        self.ill = ill
        self.asked: list[tuple[str, str, Any]] = []
        self.later: list[Any] = []

    def __call__(self, method: str, url: str, body: Any = None, **_: Any) -> tuple[int, Any]:
        self.asked.append((method, url.partition("://")[2].partition("/")[2], body))
        if method == "POST":
            self.later.append(lambda: self.there.setdefault(body["url"], f"id-{body['url']}"))
            return 202, {"status": "accepted"}
        if method == "DELETE":
            self.later.append(
                lambda: self.there.pop(next((u for u, i in self.there.items() if url.endswith(i)), ""), None)
            )
            return 202, {"status": "accepted"}
        if url.endswith("/readiness"):
            return (200, {"status": "ready"}) if self.there else (503, {"status": "not ready"})
        listed = [{"id": i, "url": u, "is_healthy": u not in self.ill, "load": 0} for u, i in self.there.items()]
        for act in self.later:
            act()
        self.later = []
        return 200, {"workers": listed}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gateway, "POLL_S", 0.001)


def router(*urls: str, ill: tuple[str, ...] = ()) -> tuple[gateway.Router, StandInRouter]:
    stand_in = StandInRouter(*urls, ill=ill)
    return gateway.Router("http://127.0.0.1:1", stand_in), stand_in


def pool(*urls: str) -> dict[str, dict[str, Any]]:
    return {url: {"url": url} for url in urls}


def test_the_router_gets_exactly_the_pool():
    made, stand_in = router(A)
    assert gateway.settle(made, pool(B), 5) is True
    assert set(stand_in.there) == {B}
    assert [ask[0] for ask in stand_in.asked if ask[0] != "GET"].count("POST") == 1
    assert gateway.settle(made, pool(B), 5) is False


def test_who_changes_the_pool_adds_what_is_theirs_and_nothing_that_is_on_its_way_in_already():
    made, stand_in = router(A)
    assert gateway.settle(made, pool(A, B), 5, []) is False
    assert gateway.settle(made, pool(A, B), 5, [A, B]) is True
    assert [body for method, _, body in stand_in.asked if method == "POST"] == [{"url": B}]


def test_an_engine_is_added_once_and_with_its_key(tmp_path: Path):
    made, stand_in = router()
    wanted = {A: {"url": A, "api_key": "secret"}}
    gateway.write_pool(tmp_path / "pool.json", wanted)
    gateway.settle(made, wanted, 5)
    gateway.await_healthy(made, tmp_path / "pool.json", [A], 5)
    assert [body for method, _, body in stand_in.asked if method == "POST"] == [{"url": A, "api_key": "secret"}]


def test_an_engine_that_is_not_healthy_in_time_is_named_with_what_is_seen(tmp_path: Path):
    made, _ = router(A, ill=(A,))
    gateway.write_pool(tmp_path / "pool.json", pool(A))
    with pytest.raises(GatewayError, match=r"not settled.*10\.0\.0\.1:30000 \(ill, 0 requests\).*healthy: http.*fix:"):
        gateway.await_healthy(made, tmp_path / "pool.json", [A], 0.05)


def test_an_engine_that_leaves_the_pool_again_is_waited_for_no_longer(tmp_path: Path):
    made, _ = router(A, ill=(A,))
    gateway.write_pool(tmp_path / "pool.json", pool(A, B))
    looks: list[int] = []

    def ask(*words: Any, **more: Any) -> tuple[int, Any]:
        looks.append(1)
        if len(looks) == 3:
            gateway.write_pool(tmp_path / "pool.json", pool(B))
        return made.ask(*words, **more)

    gateway.await_healthy(gateway.Router(made.url, ask), tmp_path / "pool.json", [A], 60)
    assert len(looks) == 3


def test_an_engine_that_is_not_given_up_in_time_is_an_error():
    stuck = {"workers": [{"id": "1", "url": A, "is_healthy": True, "load": 3}]}
    made = gateway.Router("http://127.0.0.1:1", lambda *_a, **_k: (200, stuck))
    with pytest.raises(
        GatewayError, match=r"not settled.*\(healthy, 3 requests\); expected none but http://10\.0\.0\.2"
    ):
        gateway.settle(made, pool(B), 0.05, [])


def test_an_engine_that_goes_while_it_is_taken_out_is_gone():
    made, stand_in = router(A)
    (worker,) = made.workers()

    def ask(method: str, *words: Any, **more: Any) -> tuple[int, Any]:
        return (404, "no such worker") if method == "DELETE" else stand_in(method, *words, **more)

    gateway.Router(made.url, ask).remove(worker)
    with pytest.raises(GatewayError, match="answered 500"):
        gateway.Router(made.url, lambda *_a, **_k: (500, "no")).remove(worker)


def test_an_engine_that_nobody_waits_for_may_come_later():
    made, _ = router(A, ill=(A,))
    assert gateway.settle(made, pool(A), 0.05) is False


def test_a_router_that_answers_nonsense_is_an_error():
    made = gateway.Router("http://127.0.0.1:1", lambda *_a, **_k: (500, "no"))
    with pytest.raises(GatewayError, match="seen 500 'no'"):
        made.workers()
    with pytest.raises(GatewayError, match="answered 500"):
        made.add({"url": A})


def test_readiness_is_not_that_something_listens():
    assert router()[0].ready()[0] is False
    assert router(A)[0].ready()[0] is True
    assert router()[0].running() is True
    assert gateway.Router("http://127.0.0.1:1").running() is False


@pytest.mark.parametrize(
    ("present", "absent", "exact", "expected"),
    [
        ((B,), (), False, {A, B}),
        ((B,), (), True, {B}),
        ((), (A,), False, set()),
        ((), (B,), False, {A}),
        ((), (), True, set()),
    ],
)
def test_the_pool_after_a_change(present: tuple[str, ...], absent: tuple[str, ...], exact: bool, expected: set[str]):
    entries = [{"url": url} for url in present]
    assert set(gateway.change(pool(A), entries, absent, exact=exact)) == expected


def test_the_file_is_roots_alone_and_read_back(tmp_path: Path):
    file = tmp_path / "deep/pool.json"
    assert gateway.read_pool(file) == {}
    wanted = {A: {"url": A, "api_key": "secret"}, B: {"url": B}}
    gateway.write_pool(file, wanted)
    assert gateway.read_pool(file) == wanted
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for damaged in (b"{}", b"", b"[" * 100_000, b"1" * 5000, file.read_bytes() + b"\xff"):
        file.write_bytes(damaged)
        with pytest.raises(GatewayError, match=r"pool\.json: no pool") as caught:
            gateway.read_pool(file)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "same", "expected"),
    [
        (None, True, "http://127.0.0.1:30000"),
        ("10.0.0.7", False, "http://10.0.0.7:30000"),
        ("0.0.0.0", False, "http://gpu-1:30000"),
        ("fd00::1", False, "http://[fd00::1]:30000"),
    ],
)
def test_where_a_gateway_reaches_an_instance(host: str | None, same: bool, expected: str):
    assert gateway.address({"name": "kimi", "port": 30000, "host": host}, "gpu-1", same_host=same) == expected


def test_an_instance_on_loopback_of_another_host_is_refused():
    with pytest.raises(GatewayError, match=r"kimi listens on 127\.0\.0\.1.*fix: give the instance a host"):
        gateway.address({"name": "kimi", "port": 30000}, "gpu-1", same_host=False)


# how busy an engine is


def engine(loads: list[Any], metrics: str = "") -> Any:
    """Return an engine whose /v1/loads gives one after the other, None when it has no such path."""
    left = list(loads)

    def ask(_method: str, url: str, _body: Any = None, key: str = "") -> tuple[int, Any]:
        if url.endswith("/metrics"):
            return (200, metrics) if metrics else (404, "")
        found = left.pop(0) if len(left) > 1 else left[0]
        return (404, "") if found is None else (200, {"loads": found})

    return ask


def rank(running: int, waiting: int = 0) -> dict[str, int]:
    return {"dp_rank": 0, "num_running_reqs": running, "num_waiting_reqs": waiting}


VLLM = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 1.0\nvllm:other 9\n'


def test_how_busy_an_engine_is():
    assert gateway.busy(A, engine([[rank(2, 1), rank(1)]])) == 4
    assert gateway.busy(A, engine([None], VLLM)) == 3
    assert gateway.busy(A, engine([None])) is None
    assert gateway.busy(A, engine([[{"dp_rank": 0}]])) is None


def test_waiting_takes_several_looks_and_has_an_end():
    busy_once_more = [[rank(1)], [rank(0)], [rank(1)], *[[rank(0)]] * gateway.QUIET_POLLS]
    asked: list[int] = []
    source = engine(busy_once_more)

    def counting(*words: Any, **more: Any) -> tuple[int, Any]:
        asked.append(1)
        return source(*words, **more)

    assert gateway.wait_idle(A, 5, ask=counting) == "idle"
    assert len(asked) == len(busy_once_more)
    assert gateway.wait_idle(A, 0.01, ask=engine([[rank(1)]])) == "busy"
    assert gateway.wait_idle(A, 5, ask=engine([None])) == "unknown"


# module and program, against a router that listens


class Handler(BaseHTTPRequestHandler):
    stand_in: StandInRouter

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        status, said = self.stand_in(self.command, f"http://router{self.path}", body)
        raw = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the names that the base class calls

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def listening():
    stand_in = StandInRouter(A)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"stand_in": stand_in}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", stand_in
    server.shutdown()
    server.server_close()


def module() -> ModuleType:
    sys.modules["ansible.module_utils.inference"] = importlib.import_module("inference")
    sys.modules["ansible.module_utils.inference.gateway"] = gateway
    return load("gateway_pool", ROOT / "plugins/modules/gateway_pool.py")


def call(capsys: pytest.CaptureFixture[str], *, check: bool = False, **given: Any) -> dict[str, Any]:
    with patch_module_args({**given, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        module().main()
    return json.loads(capsys.readouterr().out)


def test_the_module_changes_file_and_router(capsys: pytest.CaptureFixture[str], tmp_path: Path, listening: Any):
    url, stand_in = listening
    given = {"router": url, "file": str(tmp_path / "pool.json"), "present": [{"url": B, "api_key": "a-long-secret"}]}
    rehearsed = call(capsys, check=True, exact=True, **given)
    assert (rehearsed["changed"], set(stand_in.there), (tmp_path / "pool.json").exists()) == (True, {A}, False)
    done = call(capsys, exact=True, **given)
    assert (done["changed"], done["router"], done["pool"], set(stand_in.there)) == (True, "settled", [B], {B})
    assert "a-long-secret" not in json.dumps(done)
    again = call(capsys, exact=True, **given)
    assert again["changed"] is False
    left = call(capsys, router=url, file=str(tmp_path / "pool.json"), absent=[B])
    assert (left["pool"], stand_in.there) == ([], {})


def test_hosts_of_a_batch_change_the_pool_one_after_the_other(tmp_path: Path):
    file, urls = tmp_path / "pool.json", [f"http://10.0.0.{number}:30000" for number in range(8)]
    gateway.write_pool(file, pool(*urls))

    def leave(url: str) -> None:
        with gateway.changing(file):
            before = gateway.read_pool(file)
            threading.Event().wait(0.02)
            gateway.write_pool(file, gateway.change(before, [], [url], exact=False))

    threads = [threading.Thread(target=leave, args=(url,)) for url in urls[:-1]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(gateway.read_pool(file)) == urls[-1:]


@pytest.mark.parametrize("check", [False, True])
def test_the_module_changes_a_pool_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
):
    entered: list[Path] = []

    @contextlib.contextmanager
    def changing(file: Path) -> Iterator[None]:
        entered.append(file)
        yield

    monkeypatch.setattr(gateway, "changing", changing)
    call(capsys, check=check, router="http://127.0.0.1:1", file=str(tmp_path / "pool.json"), present=[{"url": A}])
    assert entered == ([] if check else [tmp_path / "pool.json"])


def test_nobody_waits_while_somebody_elses_engine_becomes_healthy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, listening: Any
):
    """B is on its way in and ill; A leaves meanwhile, and B is not asked for a second time."""
    url, stand_in = listening
    stand_in.ill = (B,)
    file = tmp_path / "pool.json"
    gateway.write_pool(file, pool(A))
    words = {"present": [{"url": B}], "router": url, "file": str(file), "seconds": 30}
    program = f"""
import json, sys
sys.path[:0] = {[str(ROOT / "tests"), str(ROOT / "plugins/module_utils")]!r}
from ansible.module_utils.testing import patch_module_args
from test_gateway import module
with patch_module_args(json.loads({json.dumps(words)!r})):
    module().main()
"""
    entering = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    while B not in stand_in.there:
        assert entering.poll() is None
        threading.Event().wait(0.05)
    left = call(capsys, router=url, file=str(file), absent=[A], seconds=5)
    assert (left["pool"], left["router"], set(stand_in.there)) == ([B], "settled", {B})
    assert entering.poll() is None
    stand_in.ill = ()
    said, _ = entering.communicate(timeout=60)
    assert json.loads(said)["changed"] is True
    assert [body for method, _, body in stand_in.asked if method == "POST"] == [{"url": B}]
    assert list(gateway.read_pool(file)) == [B]


def test_an_engine_with_another_key_is_given_to_the_router_anew(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, listening: Any
):
    url, stand_in = listening
    given = {"router": url, "file": str(tmp_path / "pool.json")}
    call(capsys, present=[{"url": A, "api_key": "first"}], **given)
    stand_in.asked.clear()
    assert call(capsys, present=[{"url": A, "api_key": "other"}], **given)["changed"] is True
    changes = [(method, body) for method, _, body in stand_in.asked if method != "GET"]
    assert changes[0][0] == "DELETE"
    assert changes[-1] == ("POST", {"url": A, "api_key": "other"})
    assert set(stand_in.there) == {A}
    assert call(capsys, present=[{"url": A, "api_key": "other"}], **given)["changed"] is False


def test_an_engine_is_asked_with_the_key_that_it_was_started_with(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    monkeypatch.setattr(gateway, "wait_idle", lambda *words: asked.append(words[2]) or "idle")
    files = [tmp_path / name for name in ("handed", "installed")]
    for number in (0, 1, 2):
        for file in files[2 - number :]:
            file.write_text(f"{file.name}\n")
        done = call(capsys, idle=A, idle_key_files=[str(file) for file in files])
        assert done["idle"] == "idle"
    assert asked == ["", "installed", "handed"]


def test_without_a_router_the_file_alone_is_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    done = call(capsys, router="http://127.0.0.1:1", file=str(tmp_path / "pool.json"), present=[{"url": A}])
    assert (done["changed"], done["router"], done["pool"]) == (True, "not running", [A])


def test_the_program_fills_a_router_and_finds_differences(tmp_path: Path, listening: Any):
    url, stand_in = listening
    file = tmp_path / "pool.json"
    gateway.write_pool(file, pool(A, B))

    def program(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "scripts/gateway"), verb, "--router", url, "--pool", str(file), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    different = program("status", "--json")
    assert (different.returncode, json.loads(different.stdout)["findings"][0]["id"]) == (2, "gateway-pool")
    assert program("fill").returncode == 0
    stand_in(*("GET", "http://router/workers"))
    assert set(stand_in.there) == {A, B}
    assert program("status").returncode == 0
    stand_in.ill = (B,)
    assert program("status").returncode == 2


# what is rendered


def rendered(name: str, **given: Any) -> str:
    defaults = yaml.safe_load((ROOT / "roles/gateway/defaults/main.yml").read_text())
    internal = yaml.safe_load((ROOT / "roles/gateway/vars/main.yml").read_text())
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(ROOT / "templates"), autoescape=False)  # noqa: S701
    environment.filters["ternary"] = lambda value, yes, no: yes if value else no
    values = defaults | internal | {"__gateway_release": {"python": "/opt/x/python"}} | given
    return environment.get_template(f"gateway/{name}.j2").render(values)


def test_only_the_allowed_paths_reach_the_router():
    text = rendered("nginx.conf")
    open_paths = {line.split()[2] for line in text.splitlines() if line.strip().startswith("location = ")}
    api = {"/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/embeddings"}
    assert open_paths == api | {"/health", "/metrics", "/router-metrics"}
    for path in api:
        block = text.split(f"location = {path} {{")[1].split("\n    }")[0]
        assert 'if ($gateway_client = "") { return 401; }' in block
    assert "location / { return 404" in text


def test_no_prompt_and_no_key_is_logged():
    text = rendered("nginx.conf")
    log = text.split("log_format")[1].split(";")[0]
    assert "$request_body" not in text
    for name in ("$request ", "$args", "$request_uri", "$http_authorization"):
        assert name not in log


def test_keys_are_compared_letter_by_letter_and_stand_in_their_own_file():
    keys = {"ann": "A" * 16, "bob": "b-_" * 8}
    assert '"~^Bearer AAAAAAAAAAAAAAAA$" "ann";' in rendered("keys.map", gateway_keys=keys)
    assert "AAAA" not in rendered("nginx.conf", gateway_keys=keys) + rendered("router.service", gateway_keys=keys)


def test_the_router_has_an_account_that_reads_no_secret():
    assert "User=inference-router\n" in rendered("router.service")
    assert "User=inference-gateway\n" in rendered("face.service")
    tasks = yaml.safe_load((ROOT / "roles/gateway/tasks/install.yml").read_text())
    (secrets,) = [
        task["managed_files"]["files"] for task in tasks if task["name"] == "Install the keys and the certificate"
    ]
    assert {entry["path"].rpartition("/")[2] for entry in secrets[1:]} == {"keys.map", "tls.crt", "tls.key"}
    assert {(entry["mode"], entry["group"]) for entry in secrets[1:]} == {("0640", "{{ __gateway_user }}")}


def test_requests_cannot_fill_run():
    """A file system of its own for them, of a size, where nginx puts them."""
    face = rendered("face.service", gateway_request_size=8)
    assert "TemporaryFileSystem=/run/inference-gateway/body:mode=1777,size=512M\n" in face
    assert "client_body_temp_path /run/inference-gateway/body;" in rendered("nginx.conf")


def test_without_keys_nobody_is_a_client_unless_that_is_wanted():
    assert 'default "";' in rendered("nginx.conf")
    assert 'default "anonymous";' in rendered("nginx.conf", gateway_anonymous=True)
