# SPDX-License-Identifier: Apache-2.0
"""Settings in containers, orchestrators, other shells and programs are judged; what is no setting stays as it is."""

import time

import pytest

from inference.nccl.foreign import as_shell
from inference.nccl.lint import lint

TOPOLOGY = {
    "kind": "topo_m",
    "gpu_count": 2,
    "gpu_ids": [0, 1],
    "links": [["X", "SYS"], ["SYS", "X"]],
    "numa_per_gpu": ["0", "1"],
    "cpu_affinity_per_gpu": [None, None],
    "nic_count": 0,
    "all_on_pcie": True,
}
FORMS = [
    "services:\n  vllm:\n    environment:\n      NCCL_PROTO: {}\n",
    'environment:\n  NCCL_PROTO: "{}"\n',
    "    environment:\n      - NCCL_PROTO={}\n",
    "environment:\n  - 'NCCL_PROTO={}'\n",
    "env:\n- name: NCCL_PROTO\n  value: {}\n",
    'env:\n- name: NCCL_PROTO\n  value: "{}"\n',
    "FROM x\nENV NCCL_PROTO={} \\\n    NCCL_ALGO=Ring\n",
    "ENV NCCL_PROTO {}\n",
    '{{"NCCL_PROTO": "{}", "NCCL_ALGO": "Ring"}}\n',
    '{{\n  "NCCL_PROTO": "{}",\n  "NCCL_ALGO": "Ring"\n}}\n',
    'import os\nos.environ["NCCL_PROTO"] = "{}"\n',
    "os.environ.setdefault('NCCL_PROTO', '{}')\n",
    "setenv NCCL_PROTO {}\n",
    "set -gx NCCL_PROTO {};\n",
    "set NCCL_PROTO={}\r\n",
    'set "NCCL_PROTO={}"\r\n',
    '$env:NCCL_PROTO = "{}"\n',
    "$ export NCCL_PROTO={}\n",
    "root@gpu01:~# export NCCL_PROTO={}\n",
    "(venv) user@gpu01:~/x$ NCCL_PROTO={} vllm serve /m\n",
    "```bash\nexport NCCL_PROTO={}\n```\n",
    "mpirun -np 8 -x NCCL_PROTO={} ./all_reduce_perf\n",
    'docker run --gpus all \\\n  --env="NCCL_PROTO={}" \\\n  vllm/vllm-openai --model m\n',
    '[Service]\nExecStart=/bin/sh -c "NCCL_PROTO={} exec /opt/x/bin/vllm serve /m"\n',
    "[Service]\nExecStart=/bin/bash -ec 'export NCCL_PROTO={}; exec /opt/x/bin/vllm serve /m'\n",
]


def judged(text):
    return {finding.id: finding for finding in lint(text, "2.28.9", topology=TOPOLOGY).findings}


@pytest.mark.parametrize("form", FORMS)
def test_a_setting_is_judged_wherever_it_stands(form):
    assert "nccl-ll128-across-sys" in judged(form.format("LL128"))


@pytest.mark.parametrize("form", FORMS)
def test_a_legal_setting_is_quiet_wherever_it_stands(form):
    findings = judged(form.replace("\r", "").format("Simple")).values()
    assert [finding.id for finding in findings if finding.level not in ("info",)] == []


def test_the_numbers_of_lines_stay():
    text = "environment:\n  A_B: c\n  NCCL_PROTO: nonsense\n"
    assert as_shell(text).split("\n") == ["", "A_B=c", "NCCL_PROTO=nonsense", ""]


@pytest.mark.parametrize(
    "text",
    [
        "export NCCL_PROTO=LL\nNCCL_ALGO=Ring # a comment\n",
        "# ENV in front of a word\nNCCL_PROTO=LL\n",
        "a: text without settings\n",
        "NCCL_PROTO = LL\n",
        "",
    ],
)
def test_what_is_not_foreign_stays_as_it_is(text):
    assert as_shell(text) == text


@pytest.mark.parametrize("line", ["setenv NCCL_PROTO ", "  NCCL_PROTO: ", "  value: ", '{"NCCL_PROTO": "', "root@h "])
def test_a_very_long_line_takes_no_time(line):
    begin = time.process_time()
    as_shell(line + " " * 50_000 + "x\n" + line * 5_000)
    assert time.process_time() - begin < 10.0  # tenths of a second here; minutes where it takes time by the square
