"""Finds LibTorch on this machine: LIBTORCH_HOME, else the cache that tools/setup fills, of the version MESHRUN_LIBTORCH (which
`tools/setup --libtorch` leaves in user.bazelrc), else of LIBTORCH_VERSION."""

load(":version.bzl", "LIBTORCH_VERSION")

def _cache_dir(environ):
    if environ.get("XDG_CACHE_HOME"):
        return environ["XDG_CACHE_HOME"]
    return environ.get("HOME", "") + "/.cache"

_BUILD = """
package(default_visibility = ["//visibility:public"])

exports_files(["include/torch/headeronly/version.h"])

# The shared libraries are named by absolute path and found again through the rpath, so that a program also runs from
# where it is copied to on this machine.
cc_library(
    name = "torch",
    hdrs = glob(
        ["include/**"],
        exclude = ["include/pybind11/**"],
    ),
    includes = [
        "include",
        "include/torch/csrc/api/include",
    ],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        # DT_RPATH comes before LD_LIBRARY_PATH, which may lead to another version.
        "-Wl,--disable-new-dtags",
        "-Wl,--push-state,--no-as-needed",
        "-l:libtorch_cpu.so",
        "-l:libc10.so",
        "-Wl,--pop-state",
        "-pthread",
    ],
)

# For extensions of Python alone.
cc_library(
    name = "pybind11",
    hdrs = glob(["include/pybind11/**"]),
    deps = [":torch"],
)

# libtorch_cuda needs libraries (cuDNN, cuSPARSELt, NVSHMEM, cuFile) that a machine which only builds may lack.
cc_library(
    name = "torch_cuda",
    linkopts = {cuda_linkopts},
    deps = [":torch"],
)
"""

def _libtorch_impl(repository_ctx):
    environ = repository_ctx.os.environ
    home = environ.get("LIBTORCH_HOME")
    version = environ.get("MESHRUN_LIBTORCH") or LIBTORCH_VERSION
    if not home:
        home = "{}/meshrun/libtorch-{}".format(_cache_dir(environ), version)
    root = repository_ctx.path(home)
    for needed in ["include/torch/csrc/api/include/torch/torch.h", "lib/libtorch_cpu.so", "lib/libc10.so"]:
        if not repository_ctx.path(home + "/" + needed).exists:
            fail(("LibTorch {} is not complete in {} ({} is missing): run tools/setup --libtorch {}, " +
                  "or set LIBTORCH_HOME to a directory with its include/ and lib/.").format(
                version,
                home,
                needed,
                version,
            ))
    lib = str(root.get_child("lib"))
    cuda_linkopts = []
    if root.get_child("lib").get_child("libtorch_cuda.so").exists:
        cuda_linkopts = [
            "-Wl,--push-state,--no-as-needed",
            "-l:libtorch_cuda.so",
            "-l:libc10_cuda.so",
            "-Wl,--pop-state",
            "-Wl,--unresolved-symbols=ignore-in-shared-libs",
        ]
    repository_ctx.symlink(root.get_child("include"), "include")
    repository_ctx.file("BUILD.bazel", _BUILD.format(
        lib = lib,
        cuda_linkopts = repr(cuda_linkopts),
    ))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = [
        "HOME",
        "LIBTORCH_HOME",
        "MESHRUN_LIBTORCH",
        "XDG_CACHE_HOME",
    ],
    local = True,
)
