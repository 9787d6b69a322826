"""Explorers of what ranks share: each has a state, set by sliders, and a picture of the state."""

from __future__ import annotations

from dataclasses import replace

from labkit.base.language import say
from labkit.cost import PROFILES, Overlap, overlap
from labkit.cost.hardware import ACCELERATORS
from labkit.cost.plan import Forecast, forecast
from labkit.cost.published import GPT2, GPT2_GRADIENTS
from labkit.cost.settings import Plan
from labkit.cost.sizes import MODELS
from labkit.explore.explorer import Explorer
from labkit.plans.buckets import BUCKET, FIRST, MIB, buckets
from labkit.plans.shards import Shards
from labkit.view.picture import Picture

from .pictures.bucket_lanes import bucket_picture
from .pictures.captions import caption
from .pictures.context_triangle import context_picture
from .pictures.expert_lanes import experts_picture
from .pictures.heat_maps import heat_picture
from .pictures.mesh_rows import mesh_picture
from .pictures.pipeline_lanes import pipelines_picture
from .pictures.plan_stacks import forecast_picture
from .pictures.recompute_lanes import staircases_picture
from .pictures.shard_lanes import shards_picture
from .pictures.world_lanes import CHOSEN_BY, world_picture
from .plans.context import LAYOUTS, ContextRing
from .plans.experts import Routing
from .plans.heat import HeatMaps
from .plans.mesh import Mesh, bytes_sent
from .plans.pipeline import pipeline
from .plans.recompute import staircase
from .plans.slices import HIDDEN, STEPS, column_row

# GPT-2's 0.88 TFLOP for 1,024 tokens, attention's products among them, at 40 % of 989 TFLOPS.
_SECONDS_PER_ROW = {"h200": 2.2e-3}
# Sequences in a step of a plan.
_BATCH = 512


class WorldExplorer(Explorer):
    """Ranks on ``nodes`` nodes (1 to 4) with ``per_node`` GPUs each (1 to 8), and the GPUs that the ranks use.

    chosen_by   the variable from which a script takes the GPU's number: "LOCAL_RANK", "RANK", or "" for no choice.
    """

    limits = {"nodes": (1, 4), "per_node": (1, 8)}
    choices = {"chosen_by": CHOSEN_BY}
    unfolds = "nodes"
    labels = {"per_node": "node"}

    def __init__(self, nodes: int = 2, per_node: int = 2, chosen_by: str = "LOCAL_RANK") -> None:
        super().__init__(nodes=nodes, per_node=per_node, chosen_by=chosen_by)

    def option_labels(self, name: str) -> dict[str, str]:
        return super().option_labels(name) | {"": say(en="(no set_device)", zh="（没有 set_device）")}

    def make_picture(self) -> Picture:
        return world_picture(self.nodes, self.per_node, self.chosen_by)


class BucketExplorer(Explorer):
    """A step of GPT-2 under DDP: gradients sent alone, in buckets of ``megabytes`` (1 to 500), and in a single bucket.

    rows        1 to 16, of 1,024 tokens, on each of 2 to the ``doublings`` (0 to 8) GPUs.
    link        the GPUs and the link between them, a name in ``labkit.PROFILES``; a link without a network limits the
                number of GPUs. The time of a row was measured on a TITAN RTX in fp32 (a V100 has the same peak); for an
                H200 it is an estimate, 40 % of the 16-bit peak.

    Backward takes the same time in all lanes: all-reduces don't slow it here (``ddp_contention`` is left out).
    """

    limits = {"megabytes": (1, 500), "rows": (1, 16), "doublings": (0, 8)}
    choices = {"link": tuple(PROFILES)}
    unfolds = "megabytes"
    powers = ("doublings",)
    labels = {"rows": "rows-per-gpu"}

    def __init__(
        self, megabytes: int = 25, rows: int = 1, doublings: int | None = None, link: str = "v100-nvlink"
    ) -> None:
        self._state = {"link": link}  # first: it limits the number of GPUs
        usual = min(5, self.span("doublings")[1]) if doublings is None else doublings
        super().__init__(link=link, megabytes=megabytes, rows=rows, doublings=usual)

    def span(self, name: str) -> tuple[int, int]:
        least, most = super().span(name)
        hardware = PROFILES.get(self._state["link"])
        if name != "doublings" or hardware is None or hardware.network_bandwidth is not None:
            return least, most
        return least, min(most, hardware.machine_size.bit_length() - 1)

    def option_labels(self, name: str) -> dict[str, str]:
        return {key: profile.name for key, profile in PROFILES.items()}

    def steps(self) -> dict[str, Overlap]:
        """Return the step of each lane, by the lane's name: one by one, buckets, one bucket."""
        most = self.megabytes * MIB
        ways = {
            say(en="one by one", zh="逐个发"): buckets(GPT2_GRADIENTS, 1),
            f"{self.megabytes} MB": buckets(GPT2_GRADIENTS, most, FIRST if most == BUCKET else None),
            say(en="one bucket", zh="全装一个桶"): (GPT2_GRADIENTS,),
        }
        link, gpus = replace(PROFILES[self.link], ddp_contention=0.0), 2**self.doublings
        work = replace(GPT2, seconds_per_row=_SECONDS_PER_ROW.get(self.link, GPT2.seconds_per_row))
        return {name: overlap(work, link, self.rows, gpus, made) for name, made in ways.items()}

    def make_picture(self) -> Picture:
        return bucket_picture(self.steps())


class ShardingExplorer(Explorer):
    """ZeRO's ``stage`` (0 to 3) on ``ranks`` ranks (1 to 64), and the shards that each rank holds.

    parameters   in millions, 100 to 20,000, trained in 16 bits with Adam.
    rows         on each GPU of 80 GB, 1 to 32, with activations of 2 GB each.
    """

    limits = {"stage": (0, 3), "ranks": (1, 64), "parameters": (100, 20_000), "rows": (1, 32)}
    unfolds = plays = "stage"
    counts = ("ranks",)
    labels = {"rows": "rows-per-gpu"}

    def __init__(self, stage: int = 0, ranks: int = 4, parameters: int = 7500, rows: int = 4) -> None:
        super().__init__(stage=stage, ranks=ranks, parameters=parameters, rows=rows)

    def make_picture(self) -> Picture:
        activations, capacity = self.rows * 2 * 10**9, 80 * 10**9
        return shards_picture(Shards(self.stage, self.ranks, 10**6 * self.parameters, activations, capacity))


class SlicesExplorer(Explorer):
    """Two layers on ``ranks`` ranks (1 to 8), cut by columns and by rows, after ``step`` (0 to 3)."""

    limits = {"step": (0, len(STEPS) - 1), "ranks": (1, HIDDEN)}
    unfolds = plays = "step"

    def __init__(self, step: int = 0, ranks: int = 4) -> None:
        super().__init__(step=step, ranks=ranks)

    def make_picture(self) -> Picture:
        words = caption("slices", str(self.step)) + say(en=" ", zh="") + caption("slices", "legend")
        return heat_picture(HeatMaps(column_row(self.ranks, self.step)), words)


class PipelineExplorer(Explorer):
    """GPipe and 1F1B over ``stages`` stages (1 to 8) with ``micro_batches`` micro-batches (1 to 16), in time."""

    limits = {"stages": (1, 8), "micro_batches": (1, 16)}
    unfolds = "micro_batches"

    def __init__(self, stages: int = 4, micro_batches: int = 8) -> None:
        super().__init__(stages=stages, micro_batches=micro_batches)

    def make_picture(self) -> Picture:
        sizes = self.stages, self.micro_batches
        return pipelines_picture([pipeline(order, *sizes) for order in ("GPipe", "1F1B")])


class RecomputeExplorer(Explorer):
    """Memory over one forward and backward of ``layers`` layers (1 to 36), three ways: nothing recomputed, all but the
    products of matrices, and everything but the input of every ``every``-th layer.

    kept   what a layer keeps for backward if nothing is recomputed, in sizes of its input, 1 to 34.
    """

    limits = {"layers": (1, 36), "kept": (1, 34), "every": (1, 36)}
    unfolds = "every"

    def __init__(self, every: int = 1, layers: int = 8, kept: int = 16) -> None:
        super().__init__(layers=layers, kept=kept, every=every)

    def span(self, name: str) -> tuple[int, int]:
        return (1, self.layers) if name == "every" else super().span(name)

    def make_picture(self) -> Picture:
        every = min(self.every, self.layers)
        return staircases_picture({
            say(en="none", zh="不重计算"): staircase(self.layers, self.kept),
            say(en="selective", zh="选择性"): staircase(self.layers, self.kept, products=True),
            say(en=f"full, every {every}", zh=f"完全，每 {every} 层"): staircase(self.layers, self.kept, every),
        })  # fmt: skip


class ContextExplorer(Explorer):
    """Causal attention over a sequence on a ring of 2 to the ``doublings`` (1 to 3) ranks, at ``step`` of the ring.

    layout   how the tokens are split: "contiguous", "zig-zag", "striped".
    """

    limits = {"doublings": (1, 3), "step": (0, 7)}
    choices = {"layout": LAYOUTS}
    unfolds = plays = "step"
    powers = ("doublings",)
    labels = {"doublings": "ranks"}

    def __init__(self, step: int = 0, doublings: int = 2, layout: str = "contiguous") -> None:
        super().__init__(layout=layout, doublings=doublings, step=step)

    def span(self, name: str) -> tuple[int, int]:
        return (0, 2**self.doublings - 1) if name == "step" else super().span(name)

    def make_picture(self) -> Picture:
        ranks = 2**self.doublings
        return context_picture(ContextRing(ranks, self.layout), min(self.step, ranks - 1))


class MeshExplorer(Explorer):
    """A mesh of ``dp`` × ``pp`` × ``tp`` ranks (1 to 4, 1 to 4, 1 to 8), coloured by the groups along ``lit``.

    The links carry what a model of Llama 3.1 8B's size sends along ``lit``, in 16 bits, with rows of 8,192 tokens.

    rank     the rank whose group is highlighted.
    node     GPUs per computer, 1 to 8.
    order    the dimensions, outermost first.
    """

    limits = {"dp": (1, 4), "pp": (1, 4), "tp": (1, 8), "rank": (0, 127), "node": (1, 8)}
    choices = {"lit": ("dp", "pp", "tp"), "order": ("dp, pp, tp", "tp, pp, dp")}
    unfolds = "rank"
    even = ("rank",)

    def __init__(
        self, dp: int = 2, pp: int = 2, tp: int = 2, *, lit: str = "tp", rank: int = 0, node: int = 4,
        order: str = "dp, pp, tp",
    ) -> None:  # fmt: skip
        super().__init__(dp=dp, pp=pp, tp=tp, lit=lit, rank=rank, node=node, order=order)

    def span(self, name: str) -> tuple[int, int]:
        return (0, self.dp * self.pp * self.tp - 1) if name == "rank" else super().span(name)

    def make_picture(self) -> Picture:
        names = tuple(self.order.split(", "))
        mesh = Mesh(names, tuple(getattr(self, name) for name in names), self.node)
        sent = bytes_sent(self.dp, self.pp, self.tp)[self.lit]
        return mesh_picture(mesh, self.lit, min(self.rank, self.span("rank")[1]), sent)


class ExpertExplorer(Explorer):
    """Eight tokens on each of ``ranks`` ranks (1 to 4), sent to their ``k`` (1 or 2) best of as many experts.

    skew       0 to 5: how much more often expert 0 is chosen.
    capacity   of an expert, in percent of an even share of the rows: 50 to 400.
    """

    limits = {"skew": (0, 5), "capacity": (50, 400), "k": (1, 2), "ranks": (1, 4)}
    unfolds = "skew"
    even = ("capacity",)

    def __init__(self, skew: int = 0, capacity: int = 125, k: int = 1, ranks: int = 4) -> None:
        super().__init__(skew=skew, capacity=capacity, k=k, ranks=ranks)

    def make_picture(self) -> Picture:
        return experts_picture(Routing(self.ranks, self.skew, self.capacity, self.k))


class PlanExplorer(Explorer):
    """A model's step on 2 to the ``doublings`` (0 to 12) GPUs: memory and time, by parts.

    tp, pp      doublings of tensor-parallel ranks and of pipeline stages; the rest of the GPUs are data parallel.
    stage       of ZeRO, 0 to 3 (FSDP); at most 1 with a pipeline, and 0 on a single GPU.
    micro       doublings of the sequences in a micro-batch; a step has 512 sequences.
    recompute   whether backward recomputes activations: "no", "yes".
    model, hardware   keys of ``labkit.cost.sizes.MODELS`` and of ``labkit.cost.hardware.ACCELERATORS``.
    """

    limits = {"doublings": (0, 12), "tp": (0, 3), "pp": (0, 4), "stage": (0, 3), "micro": (0, 4)}
    choices = {"recompute": ("no", "yes"), "model": tuple(MODELS), "hardware": tuple(ACCELERATORS)}
    unfolds = "stage"
    stays = ("model", "hardware")
    powers = ("doublings", "tp", "pp", "micro")
    labels = {"stage": "zero-stage"}

    def __init__(
        self, doublings: int = 3, tp: int = 0, pp: int = 0, stage: int = 3, micro: int = 0, recompute: str = "no",
        *, model: str = "8B", hardware: str = "h100",
    ) -> None:  # fmt: skip
        self._state = {"doublings": doublings, "tp": tp}  # these limit the number of stages
        self._shown: Forecast | None = None
        self._before: Forecast | None = None
        super().__init__(
            model=model, hardware=hardware, doublings=doublings, tp=tp, pp=pp, stage=stage, micro=micro,
            recompute=recompute,
        )  # fmt: skip

    def span(self, name: str) -> tuple[int, int]:
        least, most = super().span(name)
        doublings, tp = (self._state.get(one, 0) for one in ("doublings", "tp"))
        left = {"tp": doublings, "pp": max(0, doublings - tp)}
        return least, min(most, left.get(name, most))

    def option_labels(self, name: str) -> dict[str, str]:
        if name == "model":
            return {key: sizes.name for key, sizes in MODELS.items()}
        if name == "hardware":
            return {key: gpu.name for key, gpu in ACCELERATORS.items()}
        return super().option_labels(name)

    @property
    def plan(self) -> Plan:
        """The plan of the current state."""
        tp = min(self.tp, self.span("tp")[1])
        pp = min(self.pp, self.doublings - tp)
        dp, micro = 2 ** (self.doublings - tp - pp), 2**self.micro
        many = max(1, _BATCH // (dp * micro))
        # As in labkit.plan: with a pipeline, gradients stay whole.
        most = 0 if dp == 1 else 1 if pp else 3
        stage = min(self.stage, most)
        sp = tp > 0 and ("gathered" if stage == 3 else True)
        return Plan(dp, 2**tp, 2**pp, stage, micro, many, self.recompute == "yes", sp=sp)

    def make_picture(self) -> Picture:
        found = self._forecast()
        return forecast_picture([(found.sizes.name, found)], self._before)

    def _forecast(self) -> Forecast:
        return forecast(MODELS[self.model], self.plan, ACCELERATORS[self.hardware])

    def _show(self) -> None:
        # The scale of a longer step may be larger, so the step before the change is drawn as well.
        if (found := self._forecast()) != self._shown:
            self._before, self._shown = self._shown, found
        super()._show()
