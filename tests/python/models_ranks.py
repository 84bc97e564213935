"""What each rank of tests/python/models does: the first sample of PhysicsNeMo's documents with meshrun's names, 20 steps of a
FullyConnected network under DistributedDataParallel, and what its class promises."""

import os

import torch
from torch.nn.parallel import DistributedDataParallel

from meshrun.distributed import DistributedManager
from meshrun.models import FullyConnected


def raises(call, *words):
    try:
        call()
    except ValueError as error:
        assert "\n" not in str(error) and all(word in str(error) for word in words), error
    else:
        raise AssertionError("no error")


def promises():
    network = FullyConnected(3, 8, 2, num_layers=4, activation_fn=["relu", "tanh"], skip_connections=True)
    assert list(network.state_dict()) == [f"{layer}.linear.{name}" for layer in
                                          (*(f"layers.{i}" for i in range(4)), "final_layer") for name in ("weight", "bias")]
    x = torch.randn(5, 3)
    w = [(p.linear.weight, p.linear.bias) for p in (*network.layers, network.final_layer)]
    a = torch.relu(x @ w[0][0].T + w[0][1])
    b = torch.tanh(a @ w[1][0].T + w[1][1])
    c = torch.tanh(b @ w[2][0].T + w[2][1])
    d = torch.tanh((c + a) @ w[3][0].T + w[3][1])
    assert torch.allclose(network(x), d @ w[4][0].T + w[4][1], atol=1e-6)
    assert all(bias.abs().max() == 0 for _, bias in w)
    assert "activation_par" in FullyConnected(3, 8, 2, adaptive_activations=True).state_dict()
    raises(lambda: FullyConnected(activation_fn="siluu"), "siluu", "silu")
    raises(lambda: FullyConnected(0), "in_features 0")
    raises(lambda: network(torch.ones(5, 4)), "[batch..., 3]", "[5, 4]")


def sample(rank, size, port, names):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    promises()
    DistributedManager.initialize()
    dist = DistributedManager()
    torch.manual_seed(7)
    arch = FullyConnected(in_features=32, out_features=64, layer_size=64).to(dist.device)
    if dist.distributed:
        # device_ids and output_device are for GPUs, and so are the sample's streams
        arch = DistributedDataParallel(arch, broadcast_buffers=dist.broadcast_buffers,
                                       find_unused_parameters=dist.find_unused_parameters)
    optimizer = torch.optim.Adam(arch.parameters(), lr=0.001)
    torch.manual_seed(rank)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        pred = arch(torch.randn(128, 32, device=dist.device))
        loss = torch.sum(torch.pow(pred - torch.zeros(128, 64, device=dist.device), 2))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    own = torch.cat([p.detach().flatten() for p in arch.parameters()])
    all_of_them = [torch.empty_like(own) for _ in range(size)]
    torch.distributed.all_gather(all_of_them, own)
    assert all(torch.equal(each, own) for each in all_of_them)
    DistributedManager.cleanup()
    if rank == 0:
        print(f"  {size} ranks: FullyConnected", flush=True)
