"""GPUs and the links of their machines: makers' peaks, and shares of them that were fitted."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.language import say


@dataclass(frozen=True)
class Accelerator:
    """A GPU in a machine of ``machine_size``. Bandwidths in bytes a second.

    flops       dense peak in 16 bits. (Twice that stands in data sheets, for sparse matrices.)
    memory      bytes, of which ``usable`` can be allocated.
    bandwidth   of its memory.
    link        what a ring reaches inside a machine for large messages, "bus bandwidth" as NCCL's tests count;
                ``network`` between machines.
    product     the share of the peak that a large product reaches, ``attention`` flash attention's.
    """

    name: str
    flops: float
    memory: float
    bandwidth: float
    link: float
    network: float
    product: float
    attention: float
    machine_size: int = 8

    @property
    def usable(self) -> float:
        """What is left beside CUDA's context, NCCL's buffers and pieces between blocks: 92 %."""
        return 0.92 * self.memory


_GIB = 2**30
ACCELERATORS = {
    "a100-40": Accelerator("A100 40 GB", 312e12, 40 * _GIB, 1555e9, 180e9, 83.4e9, 0.742, 0.319),
    "a100": Accelerator("A100 80 GB", 312e12, 80 * _GIB, 2039e9, 180e9, 83.4e9, 0.742, 0.319),
    "h100": Accelerator("H100 SXM", 989e12, 80 * _GIB, 3352e9, 365e9, 281e9, 0.603, 0.176),
    "h200": Accelerator("H200 SXM", 989e12, 141e9, 4800e9, 366e9, 281e9, 0.603, 0.176),
    "b200": Accelerator("B200", 2250e12, 180e9, 8000e9, 680e9, 380e9, 0.603, 0.176),
}


def accelerator(called: str) -> Accelerator:
    """The GPU that a user names ("h100", "A100-40"). Raises ValueError otherwise."""
    found = ACCELERATORS.get(called.lower().replace("_", "-").removesuffix("-80"))
    if found is None:
        known = ", ".join(ACCELERATORS)
        raise ValueError(
            say(
                en=f"no hardware called {called!r}: there is {known}",
                zh=f"没有名为 {called!r} 的硬件，可用的有：{known}",
            )
        )
    return found
