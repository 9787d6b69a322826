"""GPUs, their links, and the time of collectives over the links: one model for DDP and for plans.

A ring's time is its bytes over its slowest link plus a latency for each step; collectives beside computing slow it. The
numbers were fitted to published measurements (published.txt, docs/plan.md) or are the makers' own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..base.files import rows_beside
from ..base.language import wrong
from ..base.numbers import amount

# Seconds of a step of a ring that gathers or scatters, inside a machine and between two: NCCL's own (its tuning.cc).
HOP, NETWORK_HOP = 3.4e-6, 9.6e-6
_HOST = 25e9  # bytes a second between the host and a GPU: what PCIe 4.0 x16 gives to pinned memory


@dataclass(frozen=True)
class Hardware:
    """The links between GPUs. Bandwidths in bytes per second, latencies in seconds.

    copy_bandwidth     of copies between two GPUs, as in scatter, gather and DataParallel's broadcast.
    reduce_bandwidth   of a link in an all-reduce ring inside one machine (NCCL's "bus bandwidth").
    latency            of one message between GPUs of a machine.
    machine_size       GPUs in a machine.
    network_bandwidth  of the ring between machines; None for a single machine.
    network_latency    of one message between machines.
    replica_overhead   seconds of Python for each replica of DataParallel (threads take turns at the interpreter).
    ddp_overhead       share by which DDP's hooks and buckets lengthen computing.
    ddp_contention     share by which overlapping all-reduces lengthen backward: their kernels use part of the GPU.
    start              seconds that a collective takes for each doubling of its members.
    crowding           by how much the network's bandwidth falls with each doubling of the machines.
    """

    name: str
    copy_bandwidth: float
    reduce_bandwidth: float
    latency: float = 10e-6
    machine_size: int = 8
    network_bandwidth: float | None = None
    network_latency: float = 20e-6
    replica_overhead: float = 2e-3
    ddp_overhead: float = 0.03
    ddp_contention: float = 0.045
    start: float = 0.0
    crowding: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            positive = field.name.endswith("bandwidth") or field.name == "machine_size"
            if (value := getattr(self, field.name)) is not None or field.name != "network_bandwidth":
                amount(field.name, value, above=positive)

    def message_seconds(self, nbytes: float, span: int, rings: int = 1) -> float:
        """Return the seconds of a message over the slowest link among ``span`` neighbouring GPUs.

        rings   of other GPUs in the same machines, which send at the same time and share the network.

        Raises ValueError if the hardware has fewer.
        """
        if span <= self.machine_size:
            return nbytes / self.reduce_bandwidth + self.latency
        if self.network_bandwidth is None:
            most = self.machine_size
            raise wrong(
                en=f"gpus must be at most {most}, the GPUs of {self.name}, which has no network, got {span}",
                zh=f"gpus 不能大于 {most}：{self.name} 只有一台机器，没有网络；现在是 {span}",
            )
        shared = 1 + self.crowding * (self.machines(span).bit_length() - 2) / max(rings, 1)
        network = self.network_bandwidth / min(max(rings, 1), self.machine_size)
        return nbytes * shared / min(self.reduce_bandwidth, network) + self.network_latency

    def machines(self, span: int) -> int:
        return -(-span // self.machine_size)


def all_reduce_seconds(nbytes: float, hardware: Hardware, gpus: int, span: int = 0) -> float:
    """Return the seconds of an all-reduce of ``nbytes`` over ``gpus`` GPUs, spread over ``span`` (default: ``gpus``).

    Between machines it is the faster of a ring and a tree, as NCCL chooses.
    """
    if gpus == 1:
        return 0.0
    span = span or gpus
    rings = span // gpus  # neighbours that belong to other groups sum at the same time
    seconds = 2 * (gpus - 1) * hardware.message_seconds(nbytes / gpus, span, rings)
    if (machines := hardware.machines(span)) > 1:
        # Up and down a binary tree of machines, and along a chain inside each: more bytes than a ring, fewer steps.
        levels, inside = (machines - 1).bit_length(), -(-gpus // machines)
        steps = (2 * levels - 1) * hardware.network_latency + 2 * (inside - 1) * hardware.latency
        seconds = min(seconds, hardware.message_seconds(2 * nbytes, span, rings) + steps)
    return seconds + hardware.start * gpus.bit_length()


def gather_seconds(nbytes: float, hardware: Hardware, gpus: int, span: int, messages: int = 1) -> float:
    """Return the seconds of all-gathers or reduce-scatters, rings of any size, of ``nbytes`` in all."""
    if gpus == 1:
        return 0.0
    between = min(hardware.machines(span), gpus) - 1
    hops = (gpus - 1 - between) * HOP + between * NETWORK_HOP
    return (gpus - 1) * hardware.message_seconds(nbytes / gpus, span, span // gpus) + messages * (
        hardware.start + hops
    )


def collective_seconds(kind: str, nbytes: float, members: int, span: int, hardware: Hardware) -> float:
    """Return the seconds of a collective of ``members`` ranks spread over ``span`` GPUs; ``nbytes`` is each rank's
    total.
    """
    if kind in ("all_reduce", "reduce"):
        return all_reduce_seconds(nbytes, hardware, members, span)
    if kind in ("send", "recv"):
        return send_seconds(nbytes, hardware, span)
    return gather_seconds(nbytes, hardware, members, span)


def send_seconds(nbytes: float, hardware: Hardware, span: int) -> float:
    """Return the seconds of a message between two GPUs of ``span``; between machines, over one GPU's share of the
    network.
    """
    between = (hardware.network_bandwidth or 0.0) / hardware.machine_size
    return nbytes / (hardware.reduce_bandwidth if span <= hardware.machine_size else between) + hardware.start


def all_to_all_seconds(nbytes: float, hardware: Hardware, gpus: int) -> float:
    """Return the seconds in which each of ``gpus`` neighbours sends ``nbytes``, in equal parts to all of them."""
    near = min(gpus, hardware.machine_size)
    seconds = send_seconds(nbytes * (near - 1) / gpus, hardware, near)
    if gpus > near:
        seconds += send_seconds(nbytes * (gpus - near) / gpus, hardware, gpus)
    return seconds if gpus > 1 else 0.0


def copy_seconds(nbytes: float, device: str, source: str | None, hardware: Hardware) -> float:
    """Return the seconds of a copy between two devices of a machine, "cpu" or "cuda:1"; 0 on one device."""
    if not nbytes or source in (None, device):
        return 0.0
    return nbytes / (_HOST if "cpu" in (device, source) else hardware.reduce_bandwidth) + hardware.start


@dataclass(frozen=True)
class Accelerator:
    """A GPU and the ``links`` of its machines. Bandwidth in bytes a second.

    flops       dense peak in 16 bits. (Data sheets give twice that, for sparse matrices.) ``single``: in float32.
    memory      bytes, of which ``usable`` can be allocated.
    bandwidth   of its memory.
    product     the share of the peak that a large product reaches, ``attention`` flash attention's.
    """

    name: str
    flops: float
    single: float
    memory: float
    bandwidth: float
    product: float
    attention: float
    links: Hardware

    @property
    def usable(self) -> float:
        """The bytes that can be allocated beside CUDA's context, NCCL's buffers and fragments: 92 %."""
        return 0.92 * self.memory


def _read_profiles() -> tuple[dict[str, Hardware], dict[str, Accelerator]]:
    links, gpus = dict[str, Hardware](), dict[str, Accelerator]()
    for kind, key, name, *numbers in rows_beside(__file__):
        if kind == "links":
            given = {field: float(value) for field, _, value in (each.partition("=") for each in numbers)}
            size = int(given.pop("machine_size", Hardware.machine_size))
            links[key] = Hardware(name, **given, machine_size=size)
        elif kind == "GPU":
            flops, single, memory, bandwidth, product, attention, inside, between = map(float, numbers)
            link = Hardware(
                name.split()[0], inside, inside, latency=0.0, network_bandwidth=between, network_latency=0.0,
                start=4.16e-05, crowding=0.278,
            )  # fmt: skip
            gpus[key] = Accelerator(name, flops, single, memory, bandwidth, product, attention, link)
    return links, gpus


# hardware.txt has the figures and their sources.
PROFILES, ACCELERATORS = _read_profiles()


def accelerator(called: str) -> Accelerator:
    """Return the GPU that a user names ("h100", "A100-40", "RTX 4090"). Raises ValueError for an unknown one."""
    key = called.lower().replace("_", "-").removesuffix("-80").removeprefix("rtx").lstrip(" -")
    found = ACCELERATORS.get(key)
    if found is None:
        known = ", ".join(ACCELERATORS)
        raise wrong(
            en=f"unknown hardware {called!r}: choose from {known}",
            zh=f"没有名为 {called!r} 的硬件，可用的有：{known}",
        )
    return found
