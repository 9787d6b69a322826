"""ScalingExplorer: rows, weights and links, and how a step scales to thousands of GPUs."""

from __future__ import annotations

from dataclasses import replace

from ..base.language import say
from ..base.numbers import instance
from ..cost import PROFILES, Workload, doublings, predict_scaling
from ..cost.published import BERT
from ..view.picture import Picture
from ..view.pictures.scaling_charts import scaling_picture
from .explorer import Explorer

_MOST = 12  # doublings: 4,096 GPUs


class ScalingExplorer(Explorer):
    """Steps with ``rows`` rows (1 to 128) on each of 1, 2, 4, … GPUs, ``doublings`` (0 to 12) times twice as many.

    parameters   millions of them, 1 to 1,000, in float32.
    link         how the GPUs are joined: a name in ``labkit.cost.PROFILES``.
    work         what else a step computes and moves: by default BERT-base.
    """

    limits = {"rows": (1, 128), "parameters": (1, 1000), "doublings": (0, _MOST)}
    choices = {"link": tuple(PROFILES)}
    unfolds = "rows"

    def __init__(
        self, rows: int = 32, parameters: int = 110, doublings: int = 6, link: str = "v100-nvlink",
        *, work: Workload = BERT,
    ) -> None:  # fmt: skip
        self._work = instance("work", work, Workload)
        super().__init__(rows=rows, parameters=parameters, doublings=doublings, link=link)

    def labels(self) -> dict[str, str]:
        return super().labels() | {
            "rows": say(en="Rows per GPU", zh="每块 GPU 的行数"),
            "doublings": say(en="Doublings of GPUs", zh="GPU 数翻倍次数"),
            "link": say(en="Hardware", zh="硬件"),
        }

    def called(self, name: str) -> dict[str, str]:
        return {key: profile.name for key, profile in PROFILES.items()}

    def drawn(self) -> Picture:
        work = replace(self._work, parameter_bytes=4_000_000 * self.parameters)
        found = predict_scaling(work, PROFILES[self.link], doublings(self.doublings), rows=self.rows)
        return scaling_picture(found)
