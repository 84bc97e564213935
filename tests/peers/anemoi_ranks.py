"""What tests/peers/anemoi starts and each of its ranks does: anemoi-models' layers on a model group of two ranks beside the same
layers without a group, and trainings with anemoi-training's DDPGroupStrategy.

As a program it takes runs as JSON, a function, the number of ranks and cases each, and starts them on both backends. It appends a
line of JSON for each case to the file $ANEMOI_RESULTS: its backend and name, and the largest relative difference or the error.
"""

import datetime
import functools
import importlib
import json
import os
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

import meshrun.torch

# What had to be changed, by package. All else is as on PyPI.
PATCHES = {
    "hydra": "hydra.utils.instantiate() of a class by its name is ours, as hydra-core's antlr4-python3-runtime 4.9 has no wheel",
    "torch": "2.15, where they ask for less than 2.11",
}
# Arguments of theirs that choose what runs on a CPU: no patches.
ARGUMENTS = {"graph_attention_backend": "pyg", "attention_implementation": "scaled_dot_product_attention"}


def make_layer(configuration, **more):
    """As hydra.utils.instantiate() for {"_target_": name of a class, its arguments}."""
    module, name = configuration["_target_"].rsplit(".", 1)
    given = {key: value for key, value in configuration.items() if not key.startswith("_")}
    made = functools.partial(getattr(importlib.import_module(module), name), **given)
    return made if configuration.get("_partial_") or more.get("_partial_") else made()


def patch():
    """Called before anemoi-models is imported."""
    utils, errors = types.ModuleType("hydra.utils"), types.ModuleType("hydra.errors")
    utils.instantiate = make_layer
    errors.InstantiationException = type("InstantiationException", (Exception,), {})
    sys.modules.update({"hydra": types.ModuleType("hydra"), utils.__name__: utils, errors.__name__: errors})


patch()
import pytorch_lightning
from anemoi.models.distributed import graph
from anemoi.models.distributed.shapes import BipartiteGraphShardInfo, GraphShardInfo, get_shard_sizes
from anemoi.models.layers import mapper, processor
from anemoi.training.distributed import DDPGroupStrategy
from anemoi.training.distributed.groups import build_model_layout, create_model_process_groups
from environments import free_port
from pytorch_lightning.plugins.environments import LightningEnvironment

# Nodes, edges and heads are uneven on two ranks.
DATA, HIDDEN = 29, 13
FEATURES, CHANNELS, HEADS, EDGE, TRAINABLE = 5, 15, 5, 4, 3
SIZES = {"num_channels": CHANNELS, "num_heads": HEADS, "mlp_hidden_ratio": 2, "num_chunks": 1, "qk_norm": True,
         "layer_kernels": None, **ARGUMENTS}
EXACT = 1e-10
# They sum over a group in float32, whatever they are given.
FLOAT32_SUMS = 1e-5
STEPS, SAMPLES_PER_STEP, RANKS_PER_MODEL = 3, 2, 2
LONGEST_WAIT, LONGEST_RUN_S = datetime.timedelta(seconds=60), 90
BACKENDS = ("meshrun", "gloo")


def edges(sources, targets, symmetric=False):
    """Edges ordered by their targets: [2, n]. Every target has some; of a symmetric graph each has its opposite."""
    source = torch.arange(sources).repeat_interleave(2)
    target = (source * 5 + torch.arange(2 * sources) % 2 * 3) % targets
    pairs = set(zip(source.tolist(), target.tolist()))
    pairs |= {(target % sources, target) for target in range(targets)}
    if symmetric:
        pairs |= {(target, source) for source, target in pairs}
    return torch.tensor(sorted(pairs, key=lambda pair: pair[::-1])).T.contiguous()


def noise(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)), dtype=torch.float64)


class Processor(nn.Module):
    """One of their processors between a split and a gather of the nodes."""

    def __init__(self, kind, **more):
        super().__init__()
        torch.manual_seed(5)
        self.process = kind(num_layers=2, **SIZES | more).double()

    def forward(self, group, x, edge_attr=None):
        x, sizes = graph.ensure_sharded(x, 0, None, group)
        x = self.process(x, 1, GraphShardInfo(nodes=sizes), edge_attr=edge_attr,
                         edge_index=edges(HIDDEN, HIDDEN, symmetric=True), model_comm_group=group)
        return graph.gather_tensor(x, 0, sizes, group)


class Model(nn.Module):
    """Their graph transformers one after the other: encoder, processor, decoder."""

    def __init__(self, strategy):
        super().__init__()
        torch.manual_seed(6)
        self.trainable = nn.Parameter(noise(HIDDEN, TRAINABLE, seed=9))  # whole on each rank
        given = SIZES | {"edge_dim": EDGE, "shard_strategy": strategy}
        self.encode = mapper.GraphTransformerForwardMapper(in_channels_src=FEATURES, in_channels_dst=TRAINABLE, **given)
        self.process = processor.GraphTransformerProcessor(num_layers=2, **given)
        self.decode = mapper.GraphTransformerBackwardMapper(in_channels_src=CHANNELS, in_channels_dst=FEATURES,
                                                            out_channels_dst=FEATURES, **given)
        self.double()

    def forward(self, group, x, *edge_attrs):
        sizes = get_shard_sizes(self.trainable, 0, group) if group else None
        ways = edges(DATA, HIDDEN), edges(HIDDEN, HIDDEN, symmetric=True), edges(HIDDEN, DATA)
        encode, process, decode = zip(edge_attrs, ways)
        x, latent = self.encode((x, self.trainable), 1, BipartiteGraphShardInfo(), *encode, model_comm_group=group)
        latent = latent + self.process(latent, 1, GraphShardInfo(nodes=sizes), *process, model_comm_group=group)
        return x + self.decode((latent, x), 1, BipartiteGraphShardInfo(src_nodes=sizes), *decode, model_comm_group=group)

    @staticmethod
    def inputs(seed=0):
        return [noise(DATA, FEATURES, seed=seed), *(noise(edges(*sizes).shape[1], EDGE, seed=seed) for sizes in
                                                    ((DATA, HIDDEN), (HIDDEN, HIDDEN, True), (HIDDEN, DATA)))]


class Collectives(nn.Module):
    """Those that no layer above calls."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(noise(CHANNELS))

    def forward(self, group, x):
        # A part of the weight on each rank, so that sums over the ranks are those of one.
        mine = torch.ones(CHANNELS, dtype=x.dtype)
        if group:
            mine = (torch.arange(CHANNELS) % group.size() == group.rank()).to(x.dtype)
        sizes = get_shard_sizes(x, 0, group) if group else None
        x = graph.sync_tensor(x, 0, None, group, gather_in_fwd=False)
        part = graph.reduce_shard_tensor(x * (self.weight * mine), 0, sizes, group)
        whole = graph.sync_tensor(part, 0, sizes, group)
        return graph.reduce_tensor(whole.tanh() * mine, group)


def relative(ours, other):
    return ((ours - other).norm() / other.norm().clamp_min(1e-30)).item()


def differences(module, group, inputs):
    """Of the module's outputs and of the gradients of its inputs and parameters, from the same without a group."""
    results = []
    for of in (None, group):
        module.zero_grad()
        given = [x.clone().requires_grad_() for x in inputs]
        y = module(of, *given)
        (y * noise(*y.shape, seed=3)).sum().backward()
        gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
        # Each rank has its nodes' part of these. Those of what is whole on each rank are whole.
        for name in sorted(gradients) if of else []:
            if "trainable" not in name:
                dist.all_reduce(gradients[name], group=of)
        results.append([y.detach(), *(x.grad for x in given), *(gradients[name] for name in sorted(gradients))])
    return [relative(ours, one) for one, ours in zip(*results)]


def layers():
    """By name: the largest difference, what makes the module, and its inputs."""
    nodes = [noise(HIDDEN, CHANNELS)]
    graphs = [*nodes, noise(edges(HIDDEN, HIDDEN, symmetric=True).shape[1], EDGE)]

    def processing(strategy, **more):
        return lambda: Processor(processor.GraphTransformerProcessor, edge_dim=EDGE, shard_strategy=strategy, **more)

    return {
        "processor by heads": (EXACT, processing("heads"), graphs),
        "processor by edges": (EXACT, processing("edges"), graphs),
        "transformer": (EXACT, lambda: Processor(processor.TransformerProcessor), nodes),
        "model by heads": (EXACT, lambda: Model("heads"), Model.inputs()),
        "model by edges": (FLOAT32_SUMS, lambda: Model("edges"), Model.inputs()),
        "collectives": (FLOAT32_SUMS, Collectives, nodes),
        # The second rank has one head. Its buffers for two are in another order of memory: torch.channels_last.
        "processor with a rank of one head": (EXACT, processing("heads", num_heads=3), graphs),
    }


def say(**what):
    with open(os.environ["ANEMOI_RESULTS"], "a") as results:
        results.write(json.dumps(what) + "\n")


def begin(rank, size, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)


def judge(backend, name, most, measure):
    """Says the largest difference. A rank that fails ends, and so ends the others."""
    try:
        worst = torch.tensor(measure()).nan_to_num(nan=torch.inf).max()
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    except Exception as error:
        say(backend=backend, case=name, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        raise
    if dist.get_rank() == 0:
        say(backend=backend, case=name, difference=worst.item(), most=most)


def models(rank, size, port, backend, cases):
    """The ranks are one model's."""
    begin(rank, size, port)
    dist.init_process_group(backend, timeout=LONGEST_WAIT)
    layout = build_model_layout(size, rank, size)
    group = create_model_process_groups(layout.model_comm_group_ranks, use_local_synchronization=True)[layout.model_comm_group_id]
    known = layers()
    for name in cases:
        most, make, inputs = known[name]
        judge(backend, name, most, lambda: differences(make(), group, inputs))
    dist.destroy_process_group()


class Samples(torch.utils.data.IterableDataset):
    """Each group of ranks that share a model has samples of its own."""

    def set_comm_group_info(self, rank, group, rank_in_group, groups, *reader):
        self.place = group, groups

    def __iter__(self):
        group, groups = self.place
        for step in range(STEPS):
            yield step * groups + group


class Training(pytorch_lightning.LightningModule):
    shard_sizes = {}
    group = None

    def __init__(self, strategy):
        super().__init__()
        self.model = Model(strategy)

    def set_model_comm_group(self, group, *place):
        self.group = group

    def set_reader_groups(self, groups, *place):
        pass

    def training_step(self, sample, step=0):
        return self.loss(int(sample))

    def loss(self, sample):
        given = Model.inputs(seed=100 * sample)
        return (self.model(self.group, *given) - given[0].roll(1, 0)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def one_rank(training):
    """The same steps without groups."""
    optimizer = training.configure_optimizers()
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(training.loss(step * SAMPLES_PER_STEP + each) for each in range(SAMPLES_PER_STEP)).div(SAMPLES_PER_STEP).backward()
        optimizer.step()


def changed(training, before):
    return {name: p.detach() - before[name] for name, p in training.named_parameters()}


def train(strategy, backend):
    """Steps by Lightning's Trainer with their strategy; the differences of the parameters' changes."""
    training, other = Training(strategy), Training(strategy)
    before = {name: p.detach().clone() for name, p in other.named_parameters()}
    groups = DDPGroupStrategy(num_gpus_per_model=RANKS_PER_MODEL, read_group_size=1, process_group_backend=backend,
                              timeout=LONGEST_WAIT)
    with tempfile.TemporaryDirectory() as directory:
        trainer = pytorch_lightning.Trainer(
            accelerator="cpu", devices=RANKS_PER_MODEL * SAMPLES_PER_STEP, strategy=groups, plugins=[LightningEnvironment()],
            max_steps=STEPS, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, use_distributed_sampler=False, default_root_dir=directory)
        trainer.fit(training, torch.utils.data.DataLoader(Samples(), batch_size=None))
    assert trainer.global_step == STEPS and training.group.size() == RANKS_PER_MODEL and dist.get_backend() == backend
    one_rank(other)
    ours, one = changed(training, before), changed(other, before)
    return [relative(ours[name], one[name]) for name in one]


def trainings(rank, size, port, backend, cases):
    """Two models of two ranks."""
    begin(rank, size, port)
    for name in cases:
        strategy, most = {"training by heads": ("heads", EXACT), "training by edges": ("edges", FLOAT32_SUMS)}[name]
        judge(backend, name, most, lambda: train(strategy, backend))
    dist.destroy_process_group()


def run(function, size, *given):
    """Forks the ranks, so that packages are loaded once. Ranks that fail have said so."""
    ranks = torch.multiprocessing.start_processes(function, (size, free_port(), *given), nprocs=size, join=False,
                                                  start_method="fork")
    deadline = time.monotonic() + LONGEST_RUN_S
    try:
        while time.monotonic() < deadline and not ranks.join(timeout=1):
            pass
    except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as error:
        print(error, file=sys.stderr, flush=True)
    for rank in ranks.processes:
        rank.kill()
        rank.join()


def main():
    say(patches=PATCHES)
    for function, size, cases in json.loads(sys.argv[1]):
        for backend in BACKENDS:
            run({"models": models, "trainings": trainings}[function], size, backend, cases)


if __name__ == "__main__":
    main()
