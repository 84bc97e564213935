"""A graph network that passes messages between points on a sphere, whose nodes and edges are cut.

    python3 graph.py                                                # alone
    torchrun --nproc-per-node 2 graph.py --domain 2                 # two ranks share each graph
    meshrun run --nproc 4 graph.py --dp 2 --domain 2 --size small

An edge fetches its two nodes, and its message is added to the second one. Edges are sorted by that node, so most messages stay on
their rank.
"""

import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F
from torch.utils.data import Dataset

import common
from meshrun.domain_parallel import slab

SIZES = {  # nodes, channels of a node, neighbours of each; width, layers
    "toy": (37, 2, 4, 16, 2),
    "small": (2562, 20, 6, 128, 8),
    "large": (10242, 69, 6, 512, 16),
}


def points_on_sphere(nodes):
    """(nodes, 3): a Fibonacci lattice, from pole to pole."""
    place = torch.arange(nodes, dtype=torch.float64) + 0.5
    height, angle = 1 - 2 * place / nodes, place * torch.pi * (3 - 5**0.5)
    radius = (1 - height.square()).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin(), height], 1).float()


def edges_between(points, neighbours):
    """(source, target) of the edges to each node from its nearest ones, sorted by target."""
    nearest = torch.cdist(points, points).topk(neighbours + 1, largest=False).indices[:, 1:]
    return nearest.flatten(), torch.arange(len(points)).repeat_interleave(neighbours)


class Signals(Dataset):
    """Signals on the nodes and what becomes of them: (nodes, channels), float32. A rank computes its own nodes alone."""

    def __init__(self, points, channels, part, samples=512):
        self.points, self.channels, self.part, self.samples = points[part[0]], channels, part, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(common.SEED + index)
        waves, phase = 2 * torch.randn(3, self.channels, generator=generator), torch.rand(self.channels, generator=generator)
        return {"now": torch.sin(self.points @ waves + phase), "next": torch.sin(self.points @ waves + phase + 0.2)}


def perceptron(channels_in, width, channels_out):
    return nn.Sequential(nn.Linear(channels_in, width), nn.SiLU(), nn.Linear(width, channels_out))


class MessagePassing(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.of_edge, self.of_node = perceptron(3 * width, width, width), perceptron(2 * width, width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes, edges, source, target):
        messages = self.of_edge(torch.cat([edges.expand(len(nodes), -1, -1), nodes.index_select(1, source),
                                           nodes.index_select(1, target)], -1))
        sums = torch.zeros_like(nodes).index_add(1, target, messages)
        return nodes + self.norm(self.of_node(torch.cat([nodes, sums], -1)))


class GraphNetwork(nn.Module):
    """`signal` (batch, nodes, channels), `vectors` (edges, 3), and the two nodes of each edge, to a signal."""

    def __init__(self, channels, width, layers):
        super().__init__()
        self.of_node, self.of_edge = perceptron(channels, width, width), perceptron(3, width, width)
        self.layers = nn.ModuleList(MessagePassing(width) for _ in range(layers))
        self.out = perceptron(width, width, channels)

    def forward(self, signal, vectors, source, target):
        nodes, edges = self.of_node(signal), self.of_edge(vectors)
        for layer in self.layers:
            nodes = layer(nodes, edges, source, target)
        return signal + self.out(nodes)


def main():
    given = common.options(__doc__, SIZES)
    mesh = common.initialize(given)
    nodes, channels, neighbours, width, layers = SIZES[given.size]
    model = GraphNetwork(channels, width, layers)
    points = points_on_sphere(nodes)
    source, target = edges_between(points, neighbours)

    cut = [Replicate(), Shard(0)]  # nodes of a sample and edges, over "domain"
    graph = [common.cut(each, mesh, cut) for each in (points[source] - points[target], source, target)]
    shape = (nodes, channels)
    dataset = Signals(points, channels, slab(shape, mesh, cut))

    def loss_of(model, batch):
        return F.mse_loss(model(batch["now"], *graph), batch["next"])

    common.train(model, loss_of, *common.loader_of(mesh, dataset, cut, {"now": shape, "next": shape}, given), given)


if __name__ == "__main__":
    main()
