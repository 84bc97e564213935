"""meshrun_job: the program of a shipped job."""

load("//tools/bazel:meshrun.bzl", "meshrun_cc_binary", "meshrun_cc_library")

def meshrun_job(name, deps, srcs = ["main.cc"]):
    """The program NAME, and the same for GPUs, NAME_cuda.

    Two programs, since libtorch_cuda does not load where its libraries are missing.

    Args:
      name: of the job, and of its folder.
      deps: libraries of both.
      srcs: sources of both.
    """
    main = name + "_main"
    meshrun_cc_library(
        name = main,
        srcs = srcs,
        torch = True,
        alwayslink = True,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    meshrun_cc_binary(
        name = name,
        torch = True,
        visibility = ["//visibility:public"],
        deps = [":" + main],
    )
    meshrun_cc_binary(
        name = name + "_cuda",
        gpu = True,
        visibility = ["//visibility:public"],
        deps = [
            ":" + main,
            "//parallel/comm:nccl_backend",
        ],
    )
