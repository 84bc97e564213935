"""meshrun_job: the program of a shipped job."""

load("//tools/bazel:meshrun.bzl", "meshrun_cc_binary")

def meshrun_job(name, deps, srcs = ["main.cc"]):
    """The program NAME, and the same for GPUs, NAME_cuda.

    Two programs, since libtorch_cuda does not load where its libraries are missing.

    Args:
      name: of the job, and of its folder.
      deps: libraries of both.
      srcs: sources of both.
    """
    meshrun_cc_binary(
        name = name,
        srcs = srcs,
        torch = True,
        visibility = ["//visibility:public"],
        deps = deps,
    )
    meshrun_cc_binary(
        name = name + "_cuda",
        srcs = srcs,
        gpu = True,
        visibility = ["//visibility:public"],
        deps = deps + ["//parallel/comm:nccl_backend"],
    )
