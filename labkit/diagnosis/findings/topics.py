"""Where the course teaches each fault: a lesson, and the heading of its section in both languages.

A test holds them to the notebooks: the headings stand there, and below each is what the finding is about.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...base.language import say


@dataclass(frozen=True)
class Topic:
    """``lesson`` is a notebook's name, ``06_batch_dim``; ``en`` and ``zh`` are the heading. No lesson: ``""``."""

    lesson: str
    en: str
    zh: str

    @property
    def section(self) -> str:
        """The heading in the language in use."""
        return say(en=self.en, zh=self.zh)


UNTAUGHT = Topic("", "", "")
SIMULATED = Topic("00_start", "What is simulated, and what is not", "哪些是模拟的，哪些不是")
RULE = Topic("03_split", "The rule", "规则")
REPLICAS = Topic("04_primitives", "A replica is not a normal module", "副本不是普通的模块")

LISTED = Topic("05_devices", "The clinic: a layer in a plain list", "门诊：普通列表里的层")
CACHED = Topic("05_devices", "The clinic: a cache", "门诊：缓存")
DEVICES = Topic("05_devices", "What else can break", "还有哪些会出问题")

FOUND = Topic("06_batch_dim", "Let it be found", "让它自己查出来")
HIDDEN = Topic(
    "06_batch_dim", "“`batch_first=True` takes care of the hidden state”", "“`batch_first=True` 也管隐藏状态”"
)
CUT = Topic("06_batch_dim", "Whatever is a tensor is cut", "只要是张量，就会被切开")
UNCUT = Topic("06_batch_dim", "What is not cut, and what runs out", "不会切开的，和不够分的")
SECOND = Topic("06_batch_dim", "The batch second, and `dim=1`", "批次在第 1 维，与 `dim=1`")
BATCH = Topic("06_batch_dim", "What else can break", "还有哪些会出问题")

MEANS = Topic("07_training", "A mean of means", "平均的平均")
NORM = Topic("07_training", "BatchNorm sees a piece", "BatchNorm 只看到一个分块")
ONE_ROW = Topic("07_training", "A piece of one row", "只有一行的分块")
WRITTEN = Topic("07_training", "What forward writes down", "`forward` 里记下的东西")
MEMORY = Topic("07_training", "GPU 0 is fuller", "0 号 GPU 占的显存更多")
TRAINING = Topic("07_training", "What else can break", "还有哪些会出问题")
