"""The computer's own GPUs, where it has enough of them: nothing is simulated, torch sees the first few."""

from __future__ import annotations

import torch

from ..base.language import say
from ..base.numbers import plural
from ..base.patches import Patch, Patches
from ..plans.footprint import Occupancy

_open: RealGpus | None = None


class RealGpus:
    """The first ``count`` of the computer's GPUs, from now until :meth:`close` (or the next machine)."""

    def __init__(self, count: int) -> None:
        global _open
        release()
        self.gpus = tuple(range(count))
        self.closed = False
        # DataParallel and the programs of the lessons ask this for "all GPUs".
        self._patches = Patches(lambda: [Patch(torch.cuda, "device_count", lambda: count)])
        self._patches.put_in()
        _open = self

    def memory(self, gpu: int) -> int:
        """Bytes allocated on this GPU."""
        return torch.cuda.memory_allocated(gpu)

    def close(self) -> None:
        """Let torch see all GPUs again."""
        global _open
        if _open is self:
            _open = None
            self._patches.take_out()
        self.closed = True

    def __enter__(self) -> RealGpus:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _repr_svg_(self) -> str | None:
        if self.closed:
            return None
        there = tuple(torch.cuda.get_device_properties(k).total_memory for k in self.gpus)
        return Occupancy(tuple(map(self.memory, self.gpus)), there, simulated=False)._repr_svg_()

    def __repr__(self) -> str:
        count = len(self.gpus)
        return "\n".join(
            [say(en=plural(count, "real GPU"), zh=f"{count} 块真 GPU")]
            + [f"  cuda:{k}  {torch.cuda.get_device_name(k)}" for k in self.gpus]
        )


def release() -> None:
    """End the limit that is open, if one is."""
    if _open is not None:
        _open.close()
