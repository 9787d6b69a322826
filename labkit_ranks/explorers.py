"""The explorers of what ranks share: the states that each may have, and the picture of a state."""

from __future__ import annotations

from dataclasses import replace

from labkit.base.language import say
from labkit.base.numbers import integer
from labkit.cost import PROFILES, Overlap, overlap
from labkit.cost.hardware import ACCELERATORS
from labkit.cost.plan import forecast
from labkit.cost.published import GPT2, GPT2_GRADIENTS
from labkit.cost.settings import Plan
from labkit.cost.sizes import MODELS
from labkit.explore.explorer import Explorer
from labkit.plans.buckets import BUCKET, FIRST, MIB, buckets
from labkit.plans.shards import Shards
from labkit.view.picture import Picture

from .pictures.bucket_lanes import bucket_picture
from .pictures.heat_maps import heat_picture
from .pictures.mesh_rows import mesh_picture
from .pictures.pipeline_lanes import pipelines_picture
from .pictures.plan_stacks import forecast_picture
from .pictures.shard_lanes import shards_picture
from .pictures.world_lanes import CHOSEN_BY, world_picture
from .plans.heat import HeatMaps
from .plans.mesh import Mesh, bytes_sent
from .plans.pipeline import ORDERS, pipeline
from .plans.slices import HIDDEN, STEPS, column_row

# GPT-2's 0.88 TFLOP for 1,024 tokens, attention's products among them, at 40 % of 989 TFLOPS.
_SECONDS_PER_ROW = {"h200": 2.2e-3}


class WorldExplorer(Explorer):
    """The ranks on ``nodes`` nodes (1 to 4) with ``per_node`` GPUs each (1 to 8), and the GPUs that they take.

    chosen_by   where a script reads the number of its GPU: "LOCAL_RANK", "RANK", or "" if it never chooses one.
    """

    limits = {"nodes": (1, 4), "per_node": (1, 8)}
    choices = {"chosen_by": CHOSEN_BY}
    unfolds = "nodes"
    labels = {"per_node": "node"}

    def __init__(self, nodes: int = 2, per_node: int = 2, chosen_by: str = "LOCAL_RANK") -> None:
        super().__init__(nodes=nodes, per_node=per_node, chosen_by=chosen_by)

    def option_labels(self, name: str) -> dict[str, str]:
        called = {number: f"torch.cuda.set_device({number})" for number in CHOSEN_BY}
        return called | {"": say(en="(no set_device)", zh="（没有 set_device）")}

    def make_picture(self) -> Picture:
        return world_picture(self.nodes, self.per_node, self.chosen_by)


class BucketExplorer(Explorer):
    """A step of GPT-2 under DDP: each gradient sent by itself, in buckets of ``megabytes`` (1 to 500), and all in one.

    rows        1 to 16, of 1,024 tokens, on each of 1, 2, 4, … GPUs, ``doublings`` (0 to 8) times twice as many.
    link        which GPUs, and how they are joined: a name in ``labkit.PROFILES``. Without a network, GPUs end with the
                machine. A row takes as long as was measured on a TITAN RTX in fp32 (a V100 has the same peak), on an
                H200 what 40 % of its 16-bit peak would take: an estimate.

    Backward is as long in all three lanes: that all-reduces slow it (``ddp_contention``) is left out.
    """

    limits = {"megabytes": (1, 500), "rows": (1, 16), "doublings": (0, 8)}
    choices = {"link": tuple(PROFILES)}
    unfolds = "megabytes"
    powers = ("doublings",)
    labels = {"rows": "rows-per-gpu"}

    def __init__(
        self, megabytes: int = 25, rows: int = 1, doublings: int | None = None, link: str = "v100-nvlink"
    ) -> None:
        state: dict[str, int | str] = {"link": link, "megabytes": megabytes, "rows": rows}
        self._state = state  # the link first: of it depends how many GPUs there can be
        most = min(5, self.span("doublings")[1])
        super().__init__(**state, doublings=most if doublings is None else doublings)

    def span(self, name: str) -> tuple[int, int]:
        least, most = super().span(name)
        hardware = PROFILES.get(self._state["link"])
        if name != "doublings" or hardware is None or hardware.network_bandwidth is not None:
            return least, most
        return least, min(most, hardware.machine_size.bit_length() - 1)

    def option_labels(self, name: str) -> dict[str, str]:
        return {key: profile.name for key, profile in PROFILES.items()}

    def steps(self) -> dict[str, Overlap]:
        """Return the step of each lane, by the lane's name: no buckets, buckets, one bucket."""
        most = self.megabytes * MIB
        ways = {
            say(en="no buckets", zh="不分桶"): buckets(GPT2_GRADIENTS, 1),
            f"{self.megabytes} MB": buckets(GPT2_GRADIENTS, most, FIRST if most == BUCKET else None),
            say(en="one bucket", zh="一个桶"): (GPT2_GRADIENTS,),
        }
        link, gpus = replace(PROFILES[self.link], ddp_contention=0.0), 2**self.doublings
        work = replace(GPT2, seconds_per_row=_SECONDS_PER_ROW.get(self.link, GPT2.seconds_per_row))
        return {name: overlap(work, link, self.rows, gpus, made) for name, made in ways.items()}

    def make_picture(self) -> Picture:
        return bucket_picture(self.steps())


class ShardingExplorer(Explorer):
    """ZeRO's ``stage`` (0 to 3) on ``ranks`` ranks (1 to 64): which share of which bytes each of them holds.

    parameters   millions of them, 100 to 20,000, trained in 16 bits with Adam.
    rows         on each GPU, 1 to 32.
    activations, capacity   bytes per row, and bytes that each GPU has.
    """

    limits = {"stage": (0, 3), "ranks": (1, 64), "parameters": (100, 20_000), "rows": (1, 32)}
    unfolds = plays = "stage"
    labels = {"rows": "rows-per-gpu"}

    def __init__(
        self, stage: int = 0, ranks: int = 4, parameters: int = 7500, rows: int = 4,
        *, activations: int = 2 * 10**9, capacity: int | None = 80 * 10**9,
    ) -> None:  # fmt: skip
        self._sizes = (activations, capacity)
        super().__init__(stage=stage, ranks=ranks, parameters=parameters, rows=rows)

    def make_picture(self) -> Picture:
        each, capacity = self._sizes
        plan = Shards(self.stage, self.ranks, 10**6 * self.parameters, each * self.rows, capacity)
        return shards_picture(plan)


class SlicesExplorer(Explorer):
    """Two layers on ``ranks`` ranks (1 to 8), cut by columns and by rows, after ``step`` (0 to 3)."""

    limits = {"step": (0, len(STEPS) - 1), "ranks": (1, HIDDEN)}
    unfolds = plays = "step"

    def __init__(self, step: int = 0, ranks: int = 4) -> None:
        super().__init__(step=step, ranks=ranks)

    def make_picture(self) -> Picture:
        return heat_picture(HeatMaps(column_row(self.ranks, self.step)))


class PipelineExplorer(Explorer):
    """GPipe and 1F1B over ``stages`` stages (1 to 8) with ``micro_batches`` micro-batches (1 to 16), in time."""

    limits = {"stages": (1, 8), "micro_batches": (1, 16)}
    unfolds = "micro_batches"

    def __init__(self, stages: int = 4, micro_batches: int = 8) -> None:
        super().__init__(stages=stages, micro_batches=micro_batches)

    def make_picture(self) -> Picture:
        return pipelines_picture([pipeline(order, self.stages, self.micro_batches) for order in ORDERS])


class MeshExplorer(Explorer):
    """A mesh of ``dp`` × ``pp`` × ``tp`` ranks (1 to 4, 1 to 4, 1 to 8); along ``lit`` the groups light up.

    The links carry what a model of Llama 3.1 8B's size sends along ``lit``, in 16 bits, with rows of 8,192 tokens.

    rank     whose group is pointed out.
    node     GPUs of a computer, 1 to 8.
    order    the dimensions, the outermost first.
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


class PlanExplorer(Explorer):
    """A model's step on 2 to the ``doublings`` (0 to 12) GPUs: its memory and its time, by parts.

    tp, pp      how often the ranks that share a layer's tensors, and the stages of a pipeline, are doubled; the rest of
                the GPUs are data parallel.
    stage       of ZeRO, 0 to 3 (FSDP); of a pipeline no more than 1, of one GPU by itself 0.
    micro       how often the sequences of a micro-batch are doubled; ``batch`` are in a step.
    recompute   whether activations are computed again: "no", "yes".
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
        *, model: str = "8B", hardware: str = "h100", batch: int = 512,
    ) -> None:  # fmt: skip
        self._batch = integer("batch", batch, 1)
        self._state = {"doublings": doublings, "tp": tp}  # of these depends how many stages there can be
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
        """The plan that is shown."""
        tp = min(self.tp, self.span("tp")[1])
        pp = min(self.pp, self.doublings - tp)
        dp, micro = 2 ** (self.doublings - tp - pp), 2**self.micro
        many = max(1, self._batch // (dp * micro))
        # As labkit.plan tries them: a pipeline keeps its gradients whole.
        most = 0 if dp == 1 else 1 if pp else 3
        stage = min(self.stage, most)
        sp = tp > 0 and ("gathered" if stage == 3 else True)
        return Plan(dp, 2**tp, 2**pp, stage, micro, many, self.recompute == "yes", sp=sp)

    def make_picture(self) -> Picture:
        sizes = MODELS[self.model]
        return forecast_picture([(sizes.name, forecast(sizes, self.plan, ACCELERATORS[self.hardware]))])
