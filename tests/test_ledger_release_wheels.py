# SPDX-License-Identifier: Apache-2.0
"""Releases as wheels: their order and their pins."""

from __future__ import annotations

from inference.releases import wheels as release_wheels

METADATA = """\
Metadata-Version: 2.4
Name: sglang
Requires-Dist: requests
Requires-Dist: torch==2.14.1
Requires-Dist: flashinfer_python[cu13]==0.7.2
Requires-Dist: sglang-kernel==0.4.10; platform_machine == "x86_64"
Requires-Dist: torch==2.13.0; extra == "cpu"
Requires-Dist: transformers>=5
Requires-Dist: sgl-deep-gemm (==0.2.3.post2)

torch==1.0 in the description
"""


def test_pins_are_the_exact_ones_outside_extras() -> None:
    expected = {
        "torch": "2.14.1",
        "flashinfer_python": "0.7.2",
        "sglang_kernel": "0.4.10",
        "sgl_deep_gemm": "0.2.3.post2",
    }
    assert release_wheels.pins(METADATA) == expected
    assert release_wheels.pins('Requires-Dist: torch==2.13.0; extra == "cpu"\n') == {}


def test_order_of_versions() -> None:
    versions = ["0.5.10", "0.5.9", "0.5.10.post1", "0.5.8.post1", "0.5.8"]
    expected = ["0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1"]
    assert sorted(versions, key=release_wheels.order) == expected
