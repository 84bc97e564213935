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

def _stem(file):
    return file.basename.split(".")[0]

# What protoc writes for `sources`, which it finds below `roots`.
def _generate(ctx, sources, roots, inputs):
    out_root = _joined(ctx.bin_dir.path, ctx.label.workspace_root)
    if _below_proto_root(ctx.label.package):
        out_root += "/" + _PROTO_ROOT
    arguments = ctx.actions.args()
    arguments.add_all(roots, format_each = "-I%s")
    arguments.add("--cpp_out=" + out_root)
    if ctx.attr.grpc:
        arguments.add("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin")
        arguments.add("--grpc_out=" + out_root)
    arguments.add_all(sources)
    stems = [_stem(source) for source in sources]
    ctx.actions.run(
        executable = "/usr/bin/protoc",
        arguments = [arguments],
        inputs = inputs,
        outputs = [out for out in ctx.outputs.outs if _stem(out) in stems],
        mnemonic = "MeshrunProtoc",
        progress_message = "Generating C++ from %{label}",
    )

def _codegen_impl(ctx):
    transitive = depset(
        ctx.files.srcs + ctx.files.options,
        transitive = [dep[ProtoSources].transitive for dep in ctx.attr.deps],
    )

    # Not empty where this is another workspace's external repository.
    root = ctx.label.workspace_root
    roots = [root or "."]
    if _below_proto_root(ctx.label.package) or ctx.attr.deps:
        roots.insert(0, _joined(root, _PROTO_ROOT))
    _generate(ctx, ctx.files.srcs, roots, transitive)
    for source in ctx.files.options:
        # Under the same name, without its extensions.
        name = source.path[len(_joined(root, _PROTO_ROOT)) + 1:]
        hollow = ctx.actions.declare_file("_hollow/" + name)
        ctx.actions.write(hollow, "syntax = \"proto3\";\n")
        _generate(ctx, [hollow], [hollow.path[:-len(name) - 1]], [hollow])
    return [
        DefaultInfo(files = depset(ctx.outputs.outs)),
        ProtoSources(transitive = transitive),
    ]

_codegen = rule(
    implementation = _codegen_impl,
    attrs = {
        "deps": attr.label_list(providers = [ProtoSources]),
        "grpc": attr.bool(),
        "options": attr.label_list(allow_files = [".proto"]),
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

def meshrun_proto_library(name, srcs, options = [], deps = [], grpc = False, **attributes):
    """A cc_library of the code that protoc generates.

    Args:
      name: the library.
      srcs: .proto files of this package.
      options: .proto files of this package below proto/ that extend google.protobuf.FieldOptions and hold nothing else,
        for the others to import. C++ reads these options by number, as unknown fields: protobuf ends a program in
        which two libraries register one extension, as the client library and libmeshrun.so would.
      deps: other meshrun_proto_library targets that the files import.
      grpc: also generate the services.
      **attributes: visibility, testonly and other attributes of both targets.
    """
    endings = ["pb"] + (["grpc.pb"] if grpc else [])
    stems = [src[:-len(".proto")] for src in srcs + options]
    headers = ["{}.{}.h".format(stem, ending) for stem in stems for ending in endings]
    sources = ["{}.{}.cc".format(stem, ending) for stem in stems for ending in endings]
    _codegen(
        name = name + "_codegen",
        srcs = srcs,
        options = options,
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
