"""What a script needs, as an object that shows itself."""

from __future__ import annotations

from dataclasses import dataclass

from ...base.display import Drawn
from ...base.language import say
from ...base.units import bytes_text, duration
from ...cost.hardware import Accelerator
from ...cost.plan import KINDS
from ...view import shown
from ...view.captions import caption
from ...view.picture import Picture
from .measuring import RankPlan

_PHASES = {"forward": "前向", "backward": "反向", "step": "优化器更新"}


@dataclass(frozen=True)
class ScriptPlan(Drawn):
    """The memory of each rank's GPU when ``script`` has made ``steps`` steps. ``gpu`` is what it is to fit on."""

    script: str
    gpu: Accelerator
    ranks: tuple[RankPlan, ...]
    steps: int

    @property
    def fits(self) -> bool:
        return all(one.peak <= self.gpu.memory for one in self.ranks)

    @property
    def run(self) -> tuple[RankPlan, ...]:
        """The ranks that were run."""
        return tuple(one for one in self.ranks if one.like == one.rank)

    def like(self, rank: int) -> str:
        """``rank`` and those that are taken for it: "0–31"."""
        same = [one.rank for one in self.ranks if one.like == rank]
        return f"{same[0]}" + f"–{same[-1]}" * (len(same) > 1)

    def __str__(self) -> str:
        most = max(self.ranks, key=lambda one: one.peak)
        name, size = self.gpu.name, bytes_text(int(self.gpu.memory))
        verdict = say(
            en=f"fits on {name}"
            if self.fits
            else f"does not fit on {name}: rank {most.rank} needs {bytes_text(most.peak)}",
            zh=f"在 {name} 上放得下"
            if self.fits
            else f"在 {name} 上放不下：rank {most.rank} 需要 {bytes_text(most.peak)}",
        )
        lines = [
            say(
                en=f"{self.script}, {len(self.ranks)} ranks, {self.steps} steps: {verdict} ({size})",
                zh=f"{self.script}，{len(self.ranks)} 个 rank，{self.steps} 步：{verdict}（{size}）",
            )
        ]
        for one in self.run:
            kinds = ", ".join(
                f"{say(en=kind, zh=KINDS[kind])} {bytes_text(held)}"
                for kind, held in one.at_peak.items()
                if held
            )
            after = bytes_text(sum(one.allocated.values()))
            lines.append(
                say(
                    en=f"  rank {self.like(one.rank)}: {after} allocated after a step; peak {bytes_text(one.peak)} in "
                    f"{one.phase} ({one.line}): {kinds}",
                    zh=f"  rank {self.like(one.rank)}：一步之后占用 {after}；峰值 {bytes_text(one.peak)}，"
                    f"出现在{_PHASES.get(one.phase, one.phase)}（{one.line}）：{kinds}",
                )
            )
            if one.elsewhere:
                lines.append(
                    say(
                        en=f"    on {one.elsewhere}, which is not its own and holds this for each of its ranks: "
                        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) at the beginning of the script',
                        zh=f"    都在 {one.elsewhere} 上，那不是它自己的 GPU；用它的每个 rank 都要占这么多："
                        '在脚本开头写上 torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
                    )
                )
        lines += self._time()
        return "\n".join(lines)

    def _time(self) -> list[str]:
        """A line on the step of the slowest rank."""
        slow = max(self.ranks, key=lambda one: sum(one.parts.values()))
        took = sum(slow.parts.values())
        if not took:
            return []
        parts = ", ".join(
            f"{caption('plan', k)} {duration(s)}" for k, s in slow.parts.items() if s > took / 1000
        )
        peak = f"{self.gpu.flops / 1e12:.0f} TFLOPS"
        reached = f"{slow.operations / took / self.gpu.flops:.1%}"
        return [
            say(
                en=f"  a step: about {duration(took)} ({parts}); {reached} of the dense peak, {peak}, with what is "
                "computed again",
                zh=f"  一步：约 {duration(took)}（{parts}）；达到稠密峰值 {peak} 的 {reached}，重算的也算在内",
            )
        ]

    __repr__ = __str__


def _picture(found: ScriptPlan) -> Picture:
    from ...view.pictures.plan_stacks import ranks_memory_picture

    rows = [(f"rank {found.like(one.rank)}", one.at_peak) for one in found.run]
    return ranks_memory_picture(rows, found.gpu.memory, str(found).split("\n")[0])


shown.pictures[ScriptPlan] = _picture
