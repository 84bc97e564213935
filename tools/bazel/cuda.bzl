"""meshrun_cuda_library: C++ with kernels, compiled by the toolkit's nvcc.

Only with --config=cuda. No GPU is needed: the code is for the architectures below and, as PTX, for later ones. Sources
see the headers of `deps`; LibTorch's whole interface takes nvcc long, so kernels keep to c10's small headers.
"""

load("@cuda//:toolkit.bzl", "CUDA_HOME", "NVCC_VERSION")

# A100, H100; PTX of the last serves what comes after it.
_ARCHITECTURES = [80, 90]

def _code_flags():
    flags = []
    for architecture in _ARCHITECTURES:
        flags += ["-gencode", "arch=compute_{0},code=sm_{0}".format(architecture)]
    return flags + ["-gencode", "arch=compute_{0},code=compute_{0}".format(_ARCHITECTURES[-1])]

def _cuda_objects_impl(ctx):
    if not NVCC_VERSION:
        fail("No nvcc in {}/bin: install CUDA 13.0's compiler or set CUDA_HOME to a toolkit with it.".format(CUDA_HOME))
    context = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
    ).compilation_context
    objects = []
    for source in ctx.files.srcs:
        stem = source.basename[:-len(source.extension) - 1]
        compiled = ctx.actions.declare_file("{}/{}.pic.o".format(ctx.label.name, stem))
        arguments = ctx.actions.args()
        # c10::complex is constexpr, without __device__.
        arguments.add_all(["-std=c++20", "-O3", "--expt-relaxed-constexpr", "-c", source, "-o", compiled])
        arguments.add_all(_code_flags())
        arguments.add_all(["-Xcompiler", "-fPIC,-Wall,-Wextra,-Werror", "--Werror", "all-warnings"])
        arguments.add_all(context.defines, before_each = "-D")
        arguments.add_all(context.quote_includes, before_each = "-I")
        arguments.add_all(context.includes, before_each = "-isystem")
        arguments.add_all(context.system_includes, before_each = "-isystem")
        ctx.actions.run(
            executable = CUDA_HOME + "/bin/nvcc",
            arguments = [arguments],
            inputs = depset([source] + ctx.files.hdrs, transitive = [context.headers]),
            outputs = [compiled],
            # The version: another compiler is another action.
            env = {
                "NVCC_VERSION": NVCC_VERSION,
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "TMPDIR": "/tmp",
            },
            # Linking LibTorch's 9,000 headers into a sandbox takes longer than compiling.
            execution_requirements = {"no-sandbox": "1"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling {} with nvcc".format(source.short_path),
        )
        objects.append(compiled)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(
            allow_files = [".cu"],
            mandatory = True,
        ),
    },
)

_ONLY_WITH_CUDA = select({
    "//:cuda": [],
    "//conditions:default": ["//tools/bazel:incompatible"],
})

def meshrun_cuda_library(name, srcs, hdrs = [], deps = [], tags = [], **attributes):
    """A cc_library of .cu files.

    Args:
      name: the library.
      srcs: .cu files, and headers that only they include.
      hdrs: the interface, plain C++.
      deps: libraries whose headers the sources include.
      tags: more than "gpu".
      **attributes: visibility and other attributes of the cc_library.
    """
    tags = tags + ["gpu"]
    _cuda_objects(
        name = name + "_objects",
        srcs = [src for src in srcs if src.endswith(".cu")],
        hdrs = hdrs + [src for src in srcs if not src.endswith(".cu")],
        tags = tags,
        target_compatible_with = _ONLY_WITH_CUDA,
        visibility = ["//visibility:private"],
        deps = deps,
    )
    native.cc_library(
        name = name,
        srcs = [":" + name + "_objects"],
        hdrs = hdrs,
        tags = tags,
        target_compatible_with = _ONLY_WITH_CUDA,
        deps = deps + ["//third_party/cuda"],
        **attributes
    )
