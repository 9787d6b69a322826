"""Encode plain data as bytes that judge and worker exchange. The reader assumes a hostile writer.

A frame is a header, a JSON text and the raw bytes of the tensors. The reader unpickles nothing, looks up no name, and
checks sizes, depths and types before it builds a value. Values are None, bool, int, float, str, list, tuple, dict and
dense torch tensors, which arrive on the CPU. Any other object arrives as :class:`Foreign`, which equals nothing.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import torch

HEADER = struct.Struct(">4sIQ")  # magic, bytes of JSON, bytes of tensors
MAGIC = b"LKF1"
TEXT = 4 << 20  # bytes of JSON in a frame, at most
BODY = 256 << 20  # bytes of tensors in a frame, at most
DEPTH = 32  # of nested structures
DIMS = 32
# Only these attributes of torch are looked up.
DTYPES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128".split()


class Garbled(ValueError):
    """Raised for bytes that are no valid frame, or exceed the limits."""


class Unfit(ValueError):
    """Raised for a value too large or too deep for a frame."""


@dataclass(frozen=True, eq=False)
class Foreign:
    """A placeholder for an object that is no plain data. Only the name of its type is known; it equals nothing else."""

    type: str

    def __repr__(self) -> str:
        return f"<{self.type}>"


def pack(value: object) -> bytes:
    """Encode ``value`` as a frame. Raise :class:`Unfit` if it is too large or too deep."""
    pieces: list[bytes] = []
    text = json.dumps(_encode(value, pieces, 0), allow_nan=False, separators=(",", ":")).encode()
    body = sum(map(len, pieces))
    if len(text) > TEXT or body > BODY:
        raise Unfit(f"{len(text)} bytes of text and {body} of tensors")
    return b"".join([HEADER.pack(MAGIC, len(text), body), text, *pieces])


def unpack(text: bytes, body: bytes) -> Any:
    """Decode the value of a frame's two parts. Raise :class:`Garbled` if they are invalid."""
    try:
        found = json.loads(text.decode("utf-8"), parse_constant=_refuse)
        reader = _Reader(body)
        value = reader.decode(found, 0)
    except Garbled:
        raise
    except (ValueError, TypeError, RecursionError, OverflowError, RuntimeError) as error:
        raise Garbled(f"{type(error).__name__} in a frame") from None
    if reader.at != len(body):
        raise Garbled("bytes that belong to no tensor")
    return value


def read(stream: BinaryIO) -> Any:
    """Read the next value from ``stream``. Raise EOFError if it ends between two frames."""
    return unpack(*parts(stream))


def parts(stream: BinaryIO) -> tuple[bytes, bytes]:
    """Read the JSON and the tensors of the next frame, undecoded. Raise EOFError at the stream's end."""
    header = _exactly(stream, HEADER.size)
    if not header:
        raise EOFError
    if len(header) != HEADER.size:
        raise Garbled("the stream ends inside a frame")
    magic, text, body = HEADER.unpack(header)
    if magic != MAGIC:
        raise Garbled("no frame begins here")
    if text > TEXT or body > BODY:
        raise Garbled(f"a frame of {text} and {body} bytes")
    found, raw = _exactly(stream, text), _exactly(stream, body)
    if len(found) < text or len(raw) < body:
        raise Garbled("the stream ends inside a frame")
    return found, raw


def _exactly(stream: BinaryIO, count: int) -> bytes:
    """Read ``count`` bytes, fewer only at the stream's end. Memory grows with what arrives."""
    pieces = []
    while count and (piece := stream.read(min(count, 1 << 20))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _refuse(name: str) -> None:
    raise Garbled(name)


def _encode(value: object, pieces: list[bytes], depth: int) -> object:
    if depth > DEPTH:
        raise Unfit(f"more than {DEPTH} structures within one another")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return value.encode("utf-8", "replace").decode()  # type: ignore[attr-defined]
    if kind is int:
        return value if value.bit_length() <= 2048 else {"o": "int"}  # type: ignore[attr-defined]
    if kind is float:
        return value if math.isfinite(value) else {"f": repr(value)}  # type: ignore[arg-type]
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        return _encode(value.item(), pieces, depth + 1)
    # Read a subclass by its base's iterator: the student may have overridden the subclass's own.
    for base, tag in (list, "l"), (tuple, "t"):
        if issubclass(kind, base):
            held: Any = base.__iter__(value)  # type: ignore[arg-type]
            return {tag: [_encode(v, pieces, depth + 1) for v in held]}
    if issubclass(kind, dict):
        pairs: Any = dict.items(value)  # type: ignore[arg-type]
        return {"d": [[_encode(k, pieces, depth + 1), _encode(v, pieces, depth + 1)] for k, v in pairs]}
    name = f"{kind.__module__}.{kind.__qualname__}"
    import torch

    if isinstance(value, torch.Tensor):
        return _tensor(value, pieces, name)
    return {"o": name[:200].encode("utf-8", "replace").decode()}


def _tensor(value: torch.Tensor, pieces: list[bytes], name: str) -> object:
    import torch

    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES or value.layout is not torch.strided:
        return {"o": f"{name} ({dtype}, {value.layout})"}
    if value.numel() * value.element_size() + sum(map(len, pieces)) > BODY:
        raise Unfit(f"a tensor of shape {list(value.shape)}")
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    pieces.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return {"T": [dtype, list(value.shape)]}


class _Reader:
    """Builds the value of a frame. Tensors take their bytes in order, so that no byte is used twice."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def decode(self, found: Any, depth: int) -> Any:
        if depth > DEPTH:
            raise Garbled(f"more than {DEPTH} structures within one another")
        if found is None or type(found) in (bool, int, float):
            return found
        if type(found) is str:
            # A lone surrogate cannot be written to a file.
            return found.encode("utf-8", "replace").decode()
        if type(found) is not dict or len(found) != 1:
            raise Garbled("a bare list, or an object of several keys")
        ((tag, inner),) = found.items()
        if tag == "f" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if tag == "o" and type(inner) is str:
            return Foreign(inner[:200].encode("utf-8", "replace").decode())
        if type(inner) is not list:
            raise Garbled(f"no list under {tag!r}")
        if tag in ("l", "t"):
            values = [self.decode(v, depth + 1) for v in inner]
            return values if tag == "l" else tuple(values)
        if tag == "d":
            made = {self.decode(k, depth + 1): self.decode(v, depth + 1) for k, v in inner}
            if len(made) != len(inner):
                raise Garbled("a key twice")
            return made
        if tag == "T":
            return self.tensor(*inner)
        raise Garbled(f"an unknown tag {tag!r}")

    def tensor(self, dtype: object, shape: object) -> torch.Tensor:
        import torch

        if dtype not in DTYPES or type(shape) is not list or len(shape) > DIMS:
            raise Garbled("a tensor of an unknown kind")
        if not all(type(size) is int and 0 <= size < 1 << 40 for size in shape):
            raise Garbled("a tensor of an impossible shape")
        kind = getattr(torch, str(dtype))
        count = math.prod(shape) * kind.itemsize
        if count > len(self.body) - self.at:
            raise Garbled(f"a tensor of shape {shape} without its values")
        if not count:
            return torch.empty(shape, dtype=kind)
        raw = bytearray(self.body[self.at : self.at + count])
        self.at += count
        if kind is torch.bool:  # a byte other than 0 and 1 would be an invalid bool
            return (torch.frombuffer(raw, dtype=torch.uint8) != 0).reshape(shape)
        return torch.frombuffer(raw, dtype=kind).reshape(shape)
