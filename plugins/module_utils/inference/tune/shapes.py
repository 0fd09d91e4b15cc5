# SPDX-License-Identifier: Apache-2.0
"""Which messages a model sends: sizes and calls of its all-reduces, from its own ``config.json``.

Tensor parallelism sums each layer's partial results over the GPUs twice: after attention and after the MLP or the
experts. A message holds the hidden state of every token of the forward pass: tokens x hidden size x bytes a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Phase = Literal["decode", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "prefill")

CALLS_PER_LAYER = 2
"""All-reduces a layer. The embedding's one and the gathering of logits, one each a forward pass, are not counted."""

ACTIVATION_BYTES: Mapping[str, int] = {"bfloat16": 2, "float16": 2, "float32": 2}
"""Bytes of a value that is sent, by the dtype that a config names; engines run a float32 model in 16 bits."""

QUICK_TOKENS: Mapping[Phase, tuple[int, ...]] = {"decode": (1, 16), "prefill": (2048, 8192)}
THOROUGH_TOKENS: Mapping[Phase, tuple[int, ...]] = {
    "decode": (1, 2, 4, 8, 16, 32, 64),
    "prefill": (256, 1024, 2048, 4096, 8192, 16384),
}
"""Tokens of a forward pass: decode is one token a stream, prefill is a chunk of a prompt."""

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_DTYPE = ("dtype", "torch_dtype")


_MOST = 1 << 30
"""No model has so many of anything."""


class ShapeError(ValueError):
    """A config that doesn't tell what is sent. The message names the field, what was seen and what is expected."""


@dataclass(frozen=True)
class Shape:
    """What a model sends: ``hidden`` values of ``dtype_bytes`` a token, ``layers`` x ``calls_per_layer`` times."""

    hidden: int
    layers: int
    dtype_bytes: int = 2
    calls_per_layer: int = CALLS_PER_LAYER
    name: str = ""

    def __post_init__(self) -> None:
        for field in ("hidden", "layers", "dtype_bytes", "calls_per_layer"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < _MOST:
                raise ShapeError(f"{field} is {value!r}; expected a whole number above 0")

    @property
    def calls(self) -> int:
        """All-reduces of one forward pass."""
        return self.layers * self.calls_per_layer

    def bytes_of(self, tokens: int) -> int:
        """Return the size of one message in bytes."""
        return tokens * self.hidden * self.dtype_bytes

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "calls": self.calls}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Shape:
        """Read what :meth:`as_dict` wrote. Raises ShapeError."""
        try:
            return cls(**{key: value for key, value in document.items() if key != "calls"})
        except (TypeError, AttributeError) as error:
            raise ShapeError(f"not the shape of a model: {error}") from error


@dataclass(frozen=True)
class Size:
    """One message: ``tokens`` of a forward pass of ``phase``, ``bytes`` in all."""

    phase: Phase
    tokens: int
    bytes: int


def shape_of(config: object, name: str = "") -> Shape:
    """Read a ``config.json`` as transformers writes it; a multimodal one's text part counts. Raises ShapeError."""
    if not isinstance(config, Mapping):
        raise ShapeError(f"config.json: seen {type(config).__name__}, expected an object")
    inner: Mapping[str, Any] = next((config[key] for key in _NESTED if isinstance(config.get(key), Mapping)), {})
    merged = {**config, **inner}
    if not name:
        architectures = config.get("architectures")
        name = str(
            architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type", "")
        )
    dtype = str(next((merged[key] for key in _DTYPE if merged.get(key)), "bfloat16")).removeprefix("torch.")
    if dtype not in ACTIVATION_BYTES:
        raise ShapeError(f"config.json: dtype is {dtype!r}; expected one of {', '.join(ACTIVATION_BYTES)}")
    return Shape(
        hidden=_number(merged, _HIDDEN), layers=_number(merged, _LAYERS), dtype_bytes=ACTIVATION_BYTES[dtype], name=name
    )


def _number(config: Mapping[str, Any], names: Sequence[str]) -> int:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if value is not None:
            raise ShapeError(f"config.json: {name} is {value!r}; expected a whole number above 0")
    raise ShapeError(f"config.json: no {' and no '.join(names)}; give the figure by hand")


def sizes(shape: Shape, tokens: Mapping[Phase, Sequence[int]] = QUICK_TOKENS) -> list[Size]:
    """Return the messages to measure, decode first. Raises ShapeError."""
    result = [Size(phase, count, shape.bytes_of(count)) for phase in PHASES for count in tokens.get(phase, ())]
    wrong = [size.tokens for size in result if not 1 <= size.tokens < _MOST]
    if wrong or not result:
        raise ShapeError(f"tokens is {wrong[0] if wrong else 'empty'}; expected numbers of 1 or more")
    return result
