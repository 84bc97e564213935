"""A training of tests/python/elastic: a small network with batch norm, Adam or another optimizer, and a scheduler, over
EpochSampler and DistributedDataParallel, which kills itself where it is told and writes its final parameters.

    elastic_training.py OUT STEPS [--optimizer NAME] [--die RANK:STEP:PLACE] [--checkpoints DIR] [--subgroup] [--stop]

OUT/<rank>.json gets the pid, the generation and the parameters of the end; OUT/died marks the first death, so that it comes once.
"""

import argparse
import json
import os
import pathlib
import signal

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import meshrun
from meshrun.distributed import DistributedManager, all_gather_v
from meshrun.elastic import CheckpointDirectory, ElasticContext, ElasticState, EpochSampler

SEED = 17
SAMPLES = 96
BATCH = 12


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.layers(x)


OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "radam": lambda parameters: torch.optim.RAdam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--die", default="")
    parser.add_argument("--checkpoints", default="")
    parser.add_argument("--subgroup", action="store_true", help="gather what the network gives over a group beside the world")
    parser.add_argument("--hook", action="store_true", help="gradients are averaged by a hook, whose continuation reads the sum")
    parser.add_argument("--stop", type=int, help="end after this step, as if the job's time were over")
    given = parser.parse_args()
    torch.set_num_threads(1)
    DistributedManager.initialize()
    manager = DistributedManager()
    first_rank = manager.rank
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, 4, generator=generator)
    targets = inputs.sum(1, keepdim=True).tanh()
    sampler = EpochSampler(SAMPLES, seed=SEED)
    elastic = ElasticContext()
    checkpoints = CheckpointDirectory(given.checkpoints, {"job": "test"}) if given.checkpoints else None
    died = given.out / "died"
    told = {}

    def die(step, place):
        if given.die == f"{first_rank}:{step}:{place}" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def body():
        if given.subgroup:
            DistributedManager.create_process_subgroup("beside", DistributedManager().world_size)
        torch.manual_seed(5)
        network = Network()
        # Statistics of the rank's rows would differ between worlds.
        network.layers[1].eval()
        network.train = lambda mode=True: network
        optimizer = OPTIMIZERS[given.optimizer](network.parameters())
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[5, 9], gamma=0.5)
        average = torch.zeros(())
        state = ElasticState(elastic, network, optimizer)
        state.keep("scheduler", scheduler)
        state.keep("average", average)
        state.seed_each_step(SEED, stream=0)
        first = state.restore()
        told.setdefault("restored", []).append(first)
        if first is None:
            saved = checkpoints.load(network, optimizer, state) if checkpoints else None
            first = saved.step if saved else 0
            told["loaded"] = first
        ddp = nn.parallel.DistributedDataParallel(network)
        if given.hook:
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        world = DistributedManager()
        last = given.steps if given.stop is None else given.stop
        for step in state.steps(first, last):
            optimizer.zero_grad()
            rows = sampler.local_batch(step, BATCH)
            outputs = ddp(inputs[rows])
            die(step, "forward")
            if given.subgroup:
                pieces = [sampler.local_batch(step, BATCH, rank, world.world_size) for rank in range(world.world_size)]
                outputs = all_gather_v(outputs, [len(piece) for piece in pieces], group="beside")
                loss = (outputs - targets[torch.cat(pieces)]).square().mean()
            else:
                loss = (outputs - targets[rows]).square().mean() * len(rows) * world.world_size / BATCH
            die(step, "backward")
            loss.backward()
            die(step, "update")
            with state.update():
                optimizer.step()
                scheduler.step()
                average.mul_(0.9).add_(step)
                die(step, "inside")
            die(step, "after")
            meshrun.report(step=step, total_steps=last, loss=loss)
            if checkpoints and step % 4 == 3:
                checkpoints.save(network, optimizer, step + 1, kept=state)
        told["parameters"] = {name: value.tolist() for name, value in network.state_dict().items()}
        told["moments"] = [{name: value.tolist() for name, value in each.items() if torch.is_tensor(value)}
                           for each in optimizer.state.values()]
        told["lr"] = optimizer.param_groups[0]["lr"]
        told["average"] = average.item()

    elastic.run(body)
    manager = DistributedManager()
    told.update(pid=os.getpid(), world=manager.world_size, generation=int(os.environ.get("MESHRUN_GENERATION", 0)))
    (given.out / f"{manager.rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
