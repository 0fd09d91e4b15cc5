# SPDX-License-Identifier: Apache-2.0
"""Where weights come from, and how rsync is called to bring them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from inference import transfer
from inference.transfer import Output, Ssh
from inference.weights import SourceError, parse_source

COMMIT = "0123456789" * 4


@pytest.mark.parametrize(
    ("text", "kind", "name", "path"),
    [
        ("/data/kimi", "folder", "", "/data/kimi"),
        ("~/models/kimi", "folder", "", "~/models/kimi"),
        ("gpu-2:/srv/models/kimi", "host", "gpu-2", "/srv/models/kimi"),
        ("gpu-2.example.com:/srv/kimi", "host", "gpu-2.example.com", "/srv/kimi"),
        (f"hf:moonshotai/Kimi-K2.5@{COMMIT}", "hub", "moonshotai/Kimi-K2.5", ""),
    ],
)
def test_a_source_is_recognised(text: str, kind: str, name: str, path: str):
    found = parse_source(text)
    assert (found.kind, found.name, found.path) == (kind, name, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("models/kimi", "absolute path"),
        ("hf:kimi", "hf:OWNER/NAME@COMMIT"),
        ("hf:a/b", "hf:OWNER/NAME@COMMIT"),
        ("hf:a/b@main", "40 hexadecimal digits"),
        (f"hf:a/b@{COMMIT[:-1]}", "40 hexadecimal digits"),
        ("https://example.com/kimi", "absolute path"),
        ("s3://bucket/kimi", "absolute path"),
        ("", "absolute path"),
    ],
)
def test_what_is_none_says_what_is_one(text: str, said: str):
    with pytest.raises(SourceError, match=said):
        parse_source(text)


@pytest.mark.parametrize(
    "text",
    ["https://user:pa55word@h/kimi", "https://hf_0123456789abcdef0123@h/kimi", "hf:a?token=hf_0123456789abcdef0123"],
)
def test_a_secret_in_what_is_none_is_not_shown(text: str):
    with pytest.raises(SourceError) as caught:
        parse_source(text)
    assert "[redacted]" in str(caught.value)
    assert not {"pa55word", "hf_0123456789abcdef0123"} & set(re.split(r"[^\w]+", str(caught.value)))


def test_a_folder_is_brought_whole_then_changes_alone_and_progress_is_read(tmp_path: Path):
    (tmp_path / "source" / "sub").mkdir(parents=True)
    (tmp_path / "source" / "sub" / "a").write_bytes(os.urandom(3_000_000))
    (tmp_path / "source" / "b").write_text("b")

    def run() -> tuple[Output, list[transfer.Progress]]:
        command = transfer.push(str(tmp_path / "source"), None, str(tmp_path / "new" / "target"))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        output = Output()
        text = done.stdout
        halves = (text[: len(text) // 2], text[len(text) // 2 :])
        return output, [progress for half in halves for progress in output.feed(half)]

    output, progress = run()
    assert output.changes >= 3 and progress[-1].percent == 100 and progress[-1].bytes == 3_000_001
    assert run()[0].changes == 0
    (tmp_path / "source" / "b").unlink()
    (tmp_path / "source" / "sub" / "a").write_bytes(b"short")
    assert run()[0].changes >= 2
    assert not (tmp_path / "new" / "target" / "b").exists()
    assert (tmp_path / "new" / "target" / "sub" / "a").read_bytes() == b"short"


def test_other_users_use_sudo_over_there():
    host = Ssh("192.0.2.1", "admin", ("ssh", "-p", "2222"))
    words = transfer.push("/data/x/", host, "/srv/x")
    assert words[-2:] == ["/data/x/", "admin@192.0.2.1:/srv/x/"]
    assert "--rsync-path=sudo -n rsync" in words and words[words.index("--rsh") + 1] == "ssh -p 2222"
    assert "--rsync-path=rsync" in transfer.push("/x", Ssh("h", "root"), "/y")


def test_from_host_to_host_the_agent_is_forwarded_for_this_command_alone():
    words = transfer.pull(
        Ssh("gpu-2", "admin", ("ssh", "-o", "BatchMode=yes")), "/srv/a b", Ssh("gpu-1", "admin"), "/srv/x"
    )
    assert words[:3] == ["ssh", "-A", "admin@gpu-1"]
    assert words[3].startswith("sudo -n --preserve-env=SSH_AUTH_SOCK rsync ")
    assert "'admin@gpu-2:/srv/a b/' /srv/x/" in words[3] and "'--rsync-path=sudo -n rsync'" in words[3]
