"""What C++ answers of DTensors and of edges of the graph is on the rank's GPU."""

import pytest
import torch
import torch.distributed as dist
from torch.autograd.graph import get_gradient_edge
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.functional import scaled_dot_product_attention

from labkit_ranks.threads.world import World


def test_gradients_by_edges_are_where_their_parameters_are():
    """As pipelining's schedules that take the weights' gradients by themselves ask for them."""

    def work(rank):
        torch.cuda.set_device(rank.number)
        layer = torch.nn.Linear(2, 2, bias=False).cuda()
        loss = layer(torch.ones(1, 2, device="cuda")).sum()
        (grad,) = torch.autograd.grad((loss,), (get_gradient_edge(layer.weight),))
        layer.weight.grad = grad
        y = layer(torch.ones(1, 2, device="cuda"))
        (again,) = torch.autograd.grad((get_gradient_edge(y),), (layer.weight,), (torch.ones_like(y),))
        assert again.device == grad.device
        return str(grad.device)

    with World(2) as world:
        assert world.run(work) == ["cuda:0", "cuda:1"]


def test_dtensors_are_compared_by_all_ranks(on_ranks):
    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        y = distribute_tensor(torch.tensor([0.0, 1, 2, 4], device="cuda"), mesh, [Shard(0)])
        return torch.equal(x, x), torch.equal(x, y)

    assert on_ranks(work) == [(True, False)] * 2


def test_what_a_functional_collective_returns_can_be_sent_on_and_a_dtensor_cannot(on_ranks):
    """Both are wrappers without memory of their own, which a copy would read past."""

    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = all_reduce(torch.ones(3, device="cuda"), "sum", dist.group.WORLD)
        if rank.number == 0:
            dist.send(x, 1)
            found = x
        else:
            found = torch.zeros_like(x.wait())  # a result that is never waited for makes C++ warn at the end
            dist.recv(found, 0)
        with pytest.raises(NotImplementedError, match="does not have a sharding strategy"):
            dist.broadcast(distribute_tensor(torch.ones(2, device="cuda"), mesh, [Shard(0)]), 0)
        return found.tolist()

    assert on_ranks(work) == [[2, 2, 2]] * 2


def test_attention_of_dtensors_that_are_sharded_by_heads(on_ranks):
    """Where no kernel of CUDA's takes a call, PyTorch's own mask is no DTensor, as on real GPUs (torchtitan #3340)."""

    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        torch.manual_seed(0)
        q = torch.rand(1, 4, 3, 4, device="cuda", requires_grad=True)
        whole = scaled_dot_product_attention(q, q, q, is_causal=True)
        sharded = distribute_tensor(q.detach(), mesh, [Shard(1)]).requires_grad_()
        found = scaled_dot_product_attention(sharded, sharded, sharded, is_causal=True)
        narrow = distribute_tensor(q[..., :2].detach(), mesh, [Shard(1)])
        scaled_dot_product_attention(narrow, narrow, narrow)
        with pytest.raises(RuntimeError, match=r"aten.add.Tensor got mixed torch.Tensor and DTensor"):
            scaled_dot_product_attention(narrow, narrow, narrow, is_causal=True)
        whole.sum().backward()
        found.sum().backward()
        return torch.allclose(found.full_tensor(), whole), torch.allclose(sharded.grad.full_tensor(), q.grad)

    assert on_ranks(work) == [(True, True)] * 2


def test_a_collective_is_no_change_that_autograd_counts(on_ranks):
    """NCCL writes into memory: what backward has saved is not taken for changed, whatever comes of it."""

    def work(rank):
        x = torch.ones(2, device="cuda", requires_grad=True)
        y = torch.relu(x)
        dist.all_reduce(y)
        y.sum().backward()
        return x.grad.tolist(), y.tolist()

    assert on_ranks(work) == [([1, 1], [2, 2])] * 2


def test_a_dtensor_that_is_copied_to_the_host_is_there(on_ranks):
    def work(rank):
        mesh = init_device_mesh("cuda", (2,))
        x = distribute_tensor(torch.arange(4.0, device="cuda"), mesh, [Shard(0)])
        copies = [x.cpu(), x.to("cpu"), x.detach().cpu().clone()]
        assert x.device.type == "cuda"
        return [(str(copy.device), str(copy.to_local().device), copy.to_local().tolist()) for copy in copies]

    found = on_ranks(work)
    assert found == [[("cpu", "cpu", values)] * 3 for values in ([0, 1], [2, 3])]


def test_a_message_to_oneself(on_ranks):
    def work(rank):
        sent, got = torch.full((2,), rank.number + 1.0, device="cuda"), torch.zeros(2, device="cuda")
        ops = [dist.P2POp(dist.irecv, got, rank.number), dist.P2POp(dist.isend, sent, rank.number)]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        return got.tolist()

    assert on_ranks(work) == [[1, 1], [2, 2]]
