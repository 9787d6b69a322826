"""labkit's engine against torch.nn.DataParallel, on the same simulated machine.

python benchmarks/engine.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from machine import resnet
from pairs import bound, ratio, report
from torch import Tensor, nn

import labkit


def main() -> None:
    torch.manual_seed(0)
    with labkit.simulate(gpus=8):
        model = nn.Sequential(*[layer for _ in range(50) for layer in (nn.Linear(64, 64), nn.ReLU())]).cuda()
        x = torch.randn(64, 64, device="cuda:0")
        theirs, ours = nn.DataParallel(model), labkit.DataParallel(model)

        def train(wrapped: nn.Module, x: Tensor) -> Callable[[], object]:
            return lambda: wrapped(x).sum().backward()

        def infer(wrapped: nn.Module) -> Callable[[], object]:
            def run() -> None:
                with torch.no_grad():
                    wrapped(x)

            return run

        bound(
            "training step of a 50-layer MLP, torch's time over ours", ratio(train(theirs, x), train(ours, x))
        )
        bound("inference of the same", ratio(infer(theirs), infer(ours)))
        # No engine that runs the replicas' own code can be quicker than this.
        replicas = labkit.replicate(model, range(8), detach=True)
        pieces = labkit.scatter(x, range(8))

        def alone() -> None:
            with torch.no_grad():
                for replica, piece in zip(replicas, pieces, strict=True):
                    replica(piece)

        def alone_there_and_back() -> None:
            for gpu, (own, piece) in enumerate(zip(copies, pieces, strict=True)):
                with torch.cuda.device(gpu):
                    own(piece).sum().backward()

        copies = [copy.deepcopy(model).to(f"cuda:{gpu}") for gpu in range(8)]
        report(
            "training step of a 50-layer MLP over the eight pieces alone",
            ratio(train(ours, x), alone_there_and_back),
            1.25,
        )
        report("inference of the same", ratio(infer(ours), alone), 1.4)
        bound(
            "torch's training step over the eight pieces alone", ratio(train(theirs, x), alone_there_and_back)
        )
        bound("torch's inference", ratio(infer(theirs), alone))
        net: nn.Module = resnet().cuda()  # type: ignore[no-untyped-call]  # of benchmarks/machine.py
        images = torch.randn(64, 3, 32, 32, device="cuda:0")
        pair = train(nn.DataParallel(net), images), train(labkit.DataParallel(net), images)
        report("training step of a convolutional net", ratio(*pair, pairs=15), 1, at_least=True)


if __name__ == "__main__":
    main()
