# SPDX-License-Identifier: Apache-2.0
"""Declares two torchvision operators just before torchvision is first imported beside a CPU build of torch.

Published torchvision wheels are linked against torch's CUDA libraries. Without these their operators are never
registered, and torchvision's own import fails when it attaches a shape function to ``torchvision::nms``. With the
schema declared the import succeeds; calling the operator still fails, because nothing implements it.
The ``.pth`` file beside this module imports it when the interpreter starts, before any other import.
"""

from __future__ import annotations

import sys

BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


class _BeforeTorchvision:
    """An import hook that finds nothing, and declares the operators on the way. It acts once."""

    def __init__(self) -> None:
        self.library: object = None

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        """Declare the operators when ``torchvision`` is looked for; leave the finding to the usual finders."""
        if name == "torchvision" and self.library is None:
            import torch

            if not torch.backends.cuda.is_built():
                # kept: the declarations go when the library object goes
                self.library = library = torch.library.Library("torchvision", "FRAGMENT")
                for operator in OPERATORS:
                    library.define(operator + BOXES)


sys.meta_path.insert(0, _BeforeTorchvision())
