"""An elastic training: when a rank is lost, the others keep their processes and go on from memory with a new one.

    meshrun run --nproc 2 --max-restarts 3 elastic.py --steps 4000     # then: kill -9 one of the two Python processes
    torchrun --nproc-per-node 2 elastic.py --steps 40                  # trains too, but does not outlive a lost rank
"""

import argparse

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import meshrun
from meshrun.distributed import DistributedManager
from meshrun.elastic import CheckpointDirectory, ElasticContext, ElasticState, EpochSampler

BATCH = 24  # of all ranks together, in a world of any size
SEED = 17


def data():
    x = torch.rand(480, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(SEED))
    return x, (3 * x[:, :1]).sin() * x[:, 1:]


def train(elastic, steps, checkpoints):
    """run() calls this in each world anew. So everything that holds a process group is made here."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)

    # What goes from world to world. keep() comes before restore().
    state = ElasticState(elastic, network, optimizer)
    state.keep("scheduler", scheduler)
    state.seed_each_step(SEED)  # a rank in another one's place draws that one's random numbers
    first = state.restore()  # from the rank that has done most steps; None: no rank has a state
    if first is None:
        saved = checkpoints.load(network, optimizer, kept=state) if checkpoints else None
        first = saved.step if saved else 0
    elif checkpoints and first and first % 500 == 0:  # its writer may be the rank that was lost
        checkpoints.save(network, optimizer, first, kept=state)

    model = DistributedDataParallel(network)
    x, y = data()
    sampler = EpochSampler(len(x), seed=SEED)  # a function of the step: no sample is skipped or taken twice
    manager = DistributedManager()
    for step in state.steps(first, steps):
        rows = sampler.local_batch(step, BATCH)
        # DistributedDataParallel takes the mean over the ranks, and their shares may differ by a sample.
        share = len(rows) * manager.world_size / BATCH
        optimizer.zero_grad()
        loss = (model(x[rows]) - y[rows]).square().mean() * share
        loss.backward()
        with state.update():  # the state changes in this block alone, and a rank may die at any line of it
            optimizer.step()
            scheduler.step()
        meshrun.report(step=step + 1, total_steps=steps, loss=loss)
        if checkpoints and (step + 1) % 500 == 0:
            checkpoints.save(network, optimizer, step + 1, kept=state)

    if manager.rank == 0:
        with torch.no_grad():
            error = (network(x) - y).square().mean().item()
        # A lost rank may make the others run the lines above again. This is called once.
        elastic.at_end(lambda: print(f"trained {steps} steps on {manager.world_size} ranks: loss {error:.12f}"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--checkpoints", metavar="DIR", help="save here every 500 steps, and begin with the newest one")
    options = parser.parse_args()

    DistributedManager.initialize()
    elastic = ElasticContext()
    checkpoints = CheckpointDirectory(options.checkpoints, identity={"batch": BATCH}) if options.checkpoints else None
    elastic.run(train, elastic, options.steps, checkpoints)
    DistributedManager.cleanup()


if __name__ == "__main__":
    main()
