"""The speed of the links between GPUs: a profile, and those of machines for which figures were published."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..base.numbers import amount


@dataclass(frozen=True)
class Hardware:
    """The links between GPUs. Bandwidths in bytes per second, latencies in seconds.

    copy_bandwidth     a copy from one GPU to another, which scatter, gather and DataParallel's broadcast use.
    reduce_bandwidth   what a link of an all-reduce ring inside one machine reaches (NCCL's "bus bandwidth").
    latency            of one message between GPUs of a machine.
    machine_size       GPUs in a machine.
    network_bandwidth  what the ring reaches between machines; None if there is one machine only.
    network_latency    of one message between machines.
    replica_overhead   seconds of Python for each replica of DataParallel (threads take turns at the interpreter).
    ddp_overhead       share by which DDP's hooks and buckets lengthen computing.
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

    def __post_init__(self) -> None:
        for field in fields(self)[1:]:
            positive = field.name.endswith("bandwidth") or field.name == "machine_size"
            if (value := getattr(self, field.name)) is not None or field.name != "network_bandwidth":
                amount(field.name, value, above=positive)


# Link speeds are the makers' figures per direction, where no measurement is named in labkit.cost.published;
# what was fitted to a measurement, and to which, stands there; the H200's were fitted to NCCL's in tests/cost, its
# network to that of four machines with 400 Gb for each GPU.
PROFILES = {
    "v100-nvlink": Hardware(
        "V100, NVLink, 4 × 100 Gb InfiniBand", copy_bandwidth=50e9, reduce_bandwidth=130e9, network_bandwidth=40e9
    ),
    "v100-dlperf": Hardware(
        "V100, NVLink, 100 Gb Ethernet", copy_bandwidth=50e9, reduce_bandwidth=130e9, network_bandwidth=3.3e9
    ),
    "titan-nvlink": Hardware(
        "2 × TITAN RTX, NVLink", copy_bandwidth=50e9, reduce_bandwidth=40e9, machine_size=2, replica_overhead=5e-3
    ),
    "titan-pcie": Hardware(
        "2 × TITAN RTX, PCIe", copy_bandwidth=10e9, reduce_bandwidth=1.02e9, machine_size=2,
        replica_overhead=5e-3,
    ),
    "h200": Hardware(
        "H200, NVLink, 8 × 400 Gb InfiniBand", copy_bandwidth=300e9, reduce_bandwidth=482e9, latency=2.86e-6,
        network_bandwidth=382e9, network_latency=7e-6,
    ),
}  # fmt: skip
