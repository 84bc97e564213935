"""Finds a CUDA toolkit: CUDA_HOME, else /usr/local/cuda. Without one, its targets fail with a sentence when built.

toolkit.bzl says where it is, for //tools/bazel:cuda.bzl, which runs its nvcc.
"""

_FOUND = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    hdrs = glob(["include/**"]),
    includes = ["include"],
    linkopts = [
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        "-l:libcudart.so.{major}",
    ],
)

cc_library(
    name = "nccl",
    linkopts = ["-l:libnccl.so.2"],
    deps = [":cudart"],
)
"""

_ABSENT = """
load(":absent.bzl", "absent")

package(default_visibility = ["//visibility:public"])

[absent(name = name) for name in ["cudart", "nccl"]]
"""

_ABSENT_RULE = """
def _absent_impl(ctx):
    fail("{reason}")

absent = rule(implementation = _absent_impl)
"""

_TOOLKIT = """
CUDA_HOME = "{home}"

# Empty: no nvcc.
NVCC_VERSION = "{version}"
"""

def _nvcc_version(repository_ctx, root):
    nvcc = root.get_child("bin").get_child("nvcc")
    if not nvcc.exists:
        return ""
    answer = repository_ctx.execute([nvcc, "--version"])
    return answer.stdout.strip().split("\n")[-1] if answer.return_code == 0 else ""

def _cuda_impl(repository_ctx):
    home = repository_ctx.os.environ.get("CUDA_HOME") or "/usr/local/cuda"
    root = repository_ctx.path(home)
    repository_ctx.file("toolkit.bzl", _TOOLKIT.format(
        home = home,
        version = _nvcc_version(repository_ctx, root),
    ))
    lib = root.get_child("lib64")
    if not root.get_child("include").get_child("cuda_runtime.h").exists:
        repository_ctx.file("BUILD.bazel", _ABSENT)
        repository_ctx.file("absent.bzl", _ABSENT_RULE.format(
            reason = "No CUDA toolkit in {}: install CUDA 13.0 or set CUDA_HOME to one.".format(home),
        ))
        return
    repository_ctx.symlink(root.get_child("include"), "include")
    repository_ctx.file("BUILD.bazel", _FOUND.format(lib = lib, major = 13))

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
