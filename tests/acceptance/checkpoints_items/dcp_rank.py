"""What ranks/checkpoint_rank.cc does, with torch.distributed.checkpoint: DIRECTORY MEGABYTES, commands from stdin."""

import json
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

TENSOR_BYTES = 16 << 20


def status_bytes(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def main(directory, megabytes):
    dist.init_process_group("gloo")
    model = torch.nn.Module()
    for i in range(-(-(megabytes << 20) // TENSOR_BYTES)):
        model.register_parameter(f"layer{i}", torch.nn.Parameter(torch.full((2048, TENSOR_BYTES // 4 // 2048), 0.5 + i)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": model.state_dict(),
             "optimizer": {name: optimizer.state[parameter] for name, parameter in model.named_parameters()}}
    step = 0
    print("ready", flush=True)
    for line in sys.stdin:
        command = line.strip()
        if command == "end":
            break
        dist.barrier()
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        before = status_bytes("VmRSS:")
        begin = time.monotonic()
        if command in ("save", "async"):
            step += 1
        place = f"{directory}/{step}"
        if command == "save":
            dcp.save(state, checkpoint_id=place)
        elif command == "async":
            writing = dcp.async_save(state, checkpoint_id=place)
        else:
            dcp.load(state, checkpoint_id=place)
        call = time.monotonic() - begin
        if command == "async":
            writing.result()
        print(json.dumps({"call": call, "whole": time.monotonic() - begin, "peak": status_bytes("VmHWM:") - before,
                          "state": 3 * (megabytes << 20)}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
