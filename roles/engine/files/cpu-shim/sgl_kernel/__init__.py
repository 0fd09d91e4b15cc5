# SPDX-License-Identifier: Apache-2.0
"""A stand-in for ``sgl_kernel`` on machines without a GPU: names can be imported, not called.

SGLang takes names from this package at import time even where it then runs on PyTorch's own operators. Here each of
them is a function that says that it does not exist, so that a path which needs a kernel stops instead of going on
with invented numbers. One function is on SGLang's CPU path itself and has a true implementation.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

__version__ = "0+cpu.standin"


def assign_req_to_token_pool_cpu(  # noqa: PLR0917 - the caller's signature
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,  # noqa: ARG001 - the caller's signature: a kernel needs the row length, indexing does not
) -> None:
    """Write each request's new cache locations into its row: ``out_cache_loc`` holds them one request after another."""
    lengths = (end_offset - start_offset).tolist()
    chunks = torch.split(out_cache_loc[: sum(lengths)].to(req_to_token.dtype), lengths)
    for row, start, length, chunk in zip(
        req_pool_indices.tolist(), start_offset.tolist(), lengths, chunks, strict=True
    ):
        req_to_token[row, start : start + length] = chunk


def __getattr__(name: str) -> Any:
    """Return a function that raises NotImplementedError: importing a kernel is harmless, running it is not."""
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels here, this is the CPU stand-in")

    kernel.__name__ = kernel.__qualname__ = name
    return kernel
