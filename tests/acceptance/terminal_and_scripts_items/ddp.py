"""A user's script under torchrun or meshrun: five DDP steps over Gloo, then every rank sees the others' parameters."""

import hashlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(100 + dist.get_rank())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
everywhere = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
dist.all_gather(everywhere, flat)
assert all(torch.equal(flat, other) for other in everywhere)
digest = hashlib.sha256(bytes(flat.view(torch.uint8).tolist())).hexdigest()[:16]
print(f"rank {dist.get_rank()} of {dist.get_world_size()} on node {os.environ['GROUP_RANK']}: parameters {digest}", flush=True)
dist.destroy_process_group()
