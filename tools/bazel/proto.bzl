"""meshrun_proto_library: C++ messages, and gRPC services, from .proto files with the system's protoc.

Files under proto/ are imported relative to it: `import "meshrun/v1/job.proto";`, and C++ includes "meshrun/v1/job.pb.h"
and, with grpc = True, "meshrun/v1/job.grpc.pb.h". Files elsewhere (a test's own service) are named from the workspace's
root.
"""

load(":flags.bzl", "LESS_OPTIMIZED", "precompiled_copts", "precompiled_deps")
load(":unity.bzl", "unity_sources")

_PROTO_ROOT = "proto"

def _below_proto_root(package):
    return package == _PROTO_ROOT or package.startswith(_PROTO_ROOT + "/")

def _joined(*parts):
    return "/".join([part for part in parts if part])

ProtoSources = provider(
    doc = "The .proto files of a library and of all that it imports.",
    fields = {"transitive": "depset of File"},
)

def _codegen_impl(ctx):
    transitive = depset(
        ctx.files.srcs,
        transitive = [dep[ProtoSources].transitive for dep in ctx.attr.deps],
    )

    # Not empty where this is another workspace's external repository.
    root = ctx.label.workspace_root
    out_root = _joined(ctx.bin_dir.path, root)
    below_proto_root = _below_proto_root(ctx.label.package)
    if below_proto_root:
        out_root += "/" + _PROTO_ROOT
    arguments = ctx.actions.args()
    if below_proto_root or ctx.attr.deps:
        arguments.add("-I" + _joined(root, _PROTO_ROOT))
    arguments.add("-I" + (root or "."))
    arguments.add("--cpp_out=" + out_root)
    if ctx.attr.grpc:
        arguments.add("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin")
        arguments.add("--grpc_out=" + out_root)
    arguments.add_all(ctx.files.srcs)
    ctx.actions.run(
        executable = "/usr/bin/protoc",
        arguments = [arguments],
        inputs = transitive,
        outputs = ctx.outputs.outs,
        mnemonic = "MeshrunProtoc",
        progress_message = "Generating C++ from %{label}",
    )
    return [
        DefaultInfo(files = depset(ctx.outputs.outs)),
        ProtoSources(transitive = transitive),
    ]

_codegen = rule(
    implementation = _codegen_impl,
    attrs = {
        "deps": attr.label_list(providers = [ProtoSources]),
        "grpc": attr.bool(),
        "outs": attr.output_list(mandatory = True),
        "srcs": attr.label_list(
            allow_files = [".proto"],
            mandatory = True,
        ),
    },
)

def _include_root_impl(ctx):
    return [CcInfo(compilation_context = cc_common.create_compilation_context(
        system_includes = depset([_joined(ctx.bin_dir.path, ctx.label.workspace_root, _PROTO_ROOT)]),
    ))]

# Generated headers below proto/ are found without that prefix, and as system headers: their warnings are not ours.
proto_include_root = rule(implementation = _include_root_impl)

def _codegen_label(label):
    if ":" in label:
        return label + "_codegen"
    return "{}:{}_codegen".format(label, label.split("/")[-1])

def meshrun_proto_library(name, srcs, deps = [], grpc = False, **attributes):
    """A cc_library of the code that protoc generates.

    Args:
      name: the library.
      srcs: .proto files of this package.
      deps: other meshrun_proto_library targets that the files import.
      grpc: also generate the services.
      **attributes: visibility, testonly and other attributes of both targets.
    """
    endings = ["pb"] + (["grpc.pb"] if grpc else [])
    stems = [src[:-len(".proto")] for src in srcs]
    headers = ["{}.{}.h".format(stem, ending) for stem in stems for ending in endings]
    sources = ["{}.{}.cc".format(stem, ending) for stem in stems for ending in endings]
    _codegen(
        name = name + "_codegen",
        srcs = srcs,
        outs = headers + sources,
        grpc = grpc,
        deps = [_codegen_label(dep) for dep in deps],
        **attributes
    )
    passed_on = {key: value for key, value in attributes.items() if key in ["tags", "testonly"]}
    joined = []
    for ending in endings:
        joined += unity_sources(
            "{}_{}".format(name, ending.replace(".", "_")),
            ["{}.{}.cc".format(stem, ending) for stem in stems],
            own_names = ["file_default_instances", "schemas"],  # protoc gives them in each
            **passed_on
        )
    native.cc_library(
        name = name,
        srcs = joined,
        hdrs = headers,
        linkstatic = True,
        copts = ["-w"] + LESS_OPTIMIZED + precompiled_copts(torch = False, unoptimized = False),
        deps = deps + precompiled_deps(torch = False, unoptimized = False) + [
            str(Label("//third_party/grpc:grpc++" if grpc else "//third_party/protobuf")),
            str(Label("//tools/bazel:proto_include_root")),
        ],
        **attributes
    )
