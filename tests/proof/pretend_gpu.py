# SPDX-License-Identifier: Apache-2.0
"""Let a CPU-only torch report eight CUDA GPUs of a chosen compute capability, so that SGLang decides as it would there.

Call :func:`install` before anything of SGLang is imported, once a process: SGLang keeps its first answers. Packages
that hold compiled GPU code become inert stand-ins: they can be imported and named, and compute nothing. What SGLang
decides from the capability is its own code; what a kernel would do is not asked.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

GPU_NAME = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
GPUS, MEMORY, MULTIPROCESSORS = 8, 96 << 30, 188

STAND_INS = frozenset(
    [
        "aiter",
        "anthropic",
        "apache_tvm_ffi",
        "av",
        "blobfile",
        "causal_conv1d",
        "compressed_tensors",
        "cuda",
        "cuda_tile",
        "cutlass",
        "datasets",
        "decord",
        "deep_ep",
        "deep_gemm",
        "distro",
        "easydict",
        "fla",
        "flash_attn",
        "flash_mla",
        "flashinfer",
        "gguf",
        "grpc",
        "IPython",
        "kernels",
        "llguidance",
        "mistral_common",
        "modelscope",
        "mooncake",
        "nixl",
        "openai_harmony",
        "outlines",
        "pynvml",
        "quack",
        "ray",
        "sentencepiece",
        "sgl_kernel",
        "sglang_router",
        "smg_grpc_proto",
        "smg_grpc_servicer",
        "soundfile",
        "tiktoken",
        "tilelang",
        "timm",
        "torch_memory_saver",
        "torchao",
        "torchaudio",
        "torchcodec",
        "torchvision",
        "triton",
        "triton_kernels",
        "tvm_ffi",
        "vllm",
        "watchfiles",
        "xgrammar",
    ]
)
"""Top-level packages that are never imported for real."""


class _Module(types.ModuleType):
    """A module in which every name exists: classes for CamelCase, inert callables otherwise."""

    __path__: Sequence[str] = []
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_class = name[0].isupper() and not name.isupper()
        value = _class(name) if is_class else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class _Names(type):
    """Lets a stand-in class be asked for any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


def _class(name: str) -> type:
    body = {"__init__": lambda *_, **__: None, "__class_getitem__": classmethod(lambda cls, _: cls)}
    return _Names(name, (), body)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in STAND_INS and not _asked_by_transformers():
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it was created."""


def _asked_by_transformers() -> bool:
    """Tell whether transformers is asking which packages exist: it goes by the answer and asks for their metadata."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib.util" and frame.f_back is not None:
            return str(frame.f_back.f_globals.get("__name__", "")).startswith("transformers.")
        frame = frame.f_back
    return False


def install(capability: tuple[int, int], cuda: str = "13.0") -> None:
    """Make torch report the GPUs and put the stand-ins in place."""
    sys.meta_path.insert(0, _Finder())
    _torch(capability, cuda)
    _triton(capability)
    _pydantic_classes()
    _transformers()


def _torch(capability: tuple[int, int], cuda: str) -> None:
    import torch

    properties = SimpleNamespace(
        major=capability[0],
        minor=capability[1],
        multi_processor_count=MULTIPROCESSORS,
        total_memory=MEMORY,
        name=GPU_NAME,
        gcnArchName="",
    )
    torch.version.cuda = cuda
    answers = {
        "is_available": True,
        "device_count": GPUS,
        "current_device": 0,
        "get_device_capability": capability,
        "get_device_name": GPU_NAME,
        "get_device_properties": properties,
        "mem_get_info": (MEMORY, MEMORY),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, _always(answer))
    torch.cuda.Stream = MagicMock
    torch.library.register_fake = _tolerant(torch.library.register_fake)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


def _tolerant(register: Callable[..., Any]) -> Callable[..., Any]:
    """Let fake kernels be registered for operators that the stand-ins do not have."""

    def registered(operator: Any, function: Any = None, /, **options: Any) -> Any:
        def decorate(wrapped: Any) -> Any:
            try:
                return register(operator, wrapped, **options)
            except Exception:
                return wrapped

        return decorate if function is None else decorate(function)

    return registered


def _triton(capability: tuple[int, int]) -> None:
    import triton
    import triton.runtime

    def unchanged(function: Any = None, **_: Any) -> Any:
        return function if callable(function) else unchanged

    triton.__version__ = "3.6.0"
    triton.jit = unchanged
    triton.heuristics = triton.autotune = lambda *_, **__: unchanged
    triton.cdiv = lambda a, b: -(-a // b)
    triton.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
    target = SimpleNamespace(backend="cuda", arch=capability[0] * 10 + capability[1], warp_size=32)
    driver = MagicMock()
    driver.active.get_current_target.return_value = target
    triton.runtime.driver = driver


def _pydantic_classes() -> None:
    """Give pydantic models to annotations that have to be checked."""
    import xgrammar
    from pydantic import BaseModel

    xgrammar.StructuralTag = type("StructuralTag", (BaseModel,), {})


def _transformers() -> None:
    """Stand in for the automatic classes that transformers leaves out without its optional packages."""
    import transformers

    for name in ("AutoModel", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor", "AutoVideoProcessor"):
        try:
            missing = "Dummy" in type(getattr(transformers, name)).__name__
        except Exception:
            missing = True
        if missing:
            # The package may have put another module in its own place since it was imported.
            for owner in (transformers, sys.modules["transformers"]):
                setattr(owner, name, MagicMock(name=name))
