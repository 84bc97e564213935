"""A training in Lightning's Trainer whose samples are ShardTensors, beside the same on whole samples."""

import logging
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pytorch_lightning import LightningModule, Trainer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

import meshrun.torch
from meshrun.domain_parallel import ShardTensor
from shard_ranks import environment, part

SAMPLES, EPOCHS = 6, 2


class Network(LightningModule):
    """Batch norm, a scheduler, and values that Lightning logs and averages."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = torch.nn.Sequential(torch.nn.Conv1d(3, 8, 3, padding=1), torch.nn.BatchNorm1d(8), torch.nn.GELU(),
                                       torch.nn.Conv1d(8, 3, 3, padding=1)).double()
        self.losses = []

    def training_step(self, batch, index):
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("validation", F.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def trained(samples, directory):
    """Losses, parameters and the last validation of a training."""
    network = Network()
    trainer = Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_progress_bar=False, enable_model_summary=False,
                      gradient_clip_val=0.5, accumulate_grad_batches=2, default_root_dir=directory)
    loader = torch.utils.data.DataLoader(samples, batch_size=None)
    trainer.fit(network, loader, loader)
    values = [*network.losses, *(value for p in network.parameters() for value in p.detach().flatten().tolist())]
    return torch.tensor([*values, trainer.callback_metrics["validation"].item()], dtype=torch.float64)


def trainings(rank, size, port, names):
    """`names`: a directory."""
    environment(rank, size, port)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    dist.init_process_group("meshrun")
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("domain",))
    generator = torch.Generator().manual_seed(3)
    whole = [torch.randn(2, 2, 3, 10, generator=generator, dtype=torch.float64) for _ in range(SAMPLES)]
    sharded = [[ShardTensor.from_local(part(tensor, 2, rank, size), mesh, [Shard(2)]) for tensor in sample] for sample in whole]
    directory = f"{names[0]}/{rank}"
    wanted, found = trained(whole, directory), trained(sharded, directory)
    worst = (wanted - found).abs().max().item()
    # AdamW divides by the root of a second moment, which is small here.
    assert worst < 1e-8, worst
    if rank == 0:
        print(f"  {size} ranks: {EPOCHS * SAMPLES} batches in Lightning's Trainer differ from one rank's by {worst:.1e}")
    dist.destroy_process_group()
