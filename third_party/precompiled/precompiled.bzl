"""precompiled_headers: headers of libraries, compiled once by g++ for all sources with the same flags.

g++ takes a precompiled header only from a compilation whose target options and used macros agree (-O0 defines other
macros than -O2), so there is one for each set of `copts` here. It is named `<name>.h.gch`, and no `<name>.h` lies beside
it: with -include, g++ fails where it cannot take it, rather than read text instead.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_headers_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    if "clang" in compiler:
        fail("Only g++ reads these precompiled headers: give --define=meshrun_pch=false with {}.".format(compiler))
    header = ctx.actions.declare_file(ctx.label.name + "_included.h")
    package = ctx.label.package
    lines = ["#include \"{}/{}\"".format(package, name) for name in ctx.attr.includes]
    ctx.actions.write(header, "\n".join(lines + ["#pragma meshrun instantiate_templates", ""]))
    libraries = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    dependencies = ctx.actions.declare_file(ctx.label.name + ".d")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = libraries.includes,
        quote_include_directories = depset([ctx.label.workspace_root or "."], transitive = [libraries.quote_includes]),
        system_include_directories = libraries.system_includes,
        preprocessor_defines = libraries.defines,
        use_pic = True,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = CPP_COMPILE_ACTION_NAME,
        variables = variables,
    )
    arguments = ctx.actions.args()
    arguments.add_all(flags)

    # A g++ that cannot use the plugin does not know the pragma.
    arguments.add(ctx.file._plugin, format = "-fplugin=%s")
    arguments.add("-Wno-unknown-pragmas")

    # The list of headers goes into the result: -fpch-deps of the users writes it into their .d files, from which Bazel
    # knows when to compile them again.
    arguments.add_all(["-MD", "-MF", dependencies, "-x", "c++-header", header, "-o", precompiled])
    inputs = [header, ctx.file._plugin] + ctx.files.hdrs
    ctx.actions.run(
        executable = compiler,
        arguments = [arguments],
        inputs = depset(inputs, transitive = [libraries.headers, toolchain.all_files]),
        outputs = [precompiled, dependencies],
        env = {"PATH": "/bin:/usr/bin:/usr/local/bin"},
        # Linking LibTorch's 9,000 headers into a sandbox takes longer than compiling.
        execution_requirements = {"no-sandbox": "1"},
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling headers for {}".format(ctx.label.name),
    )
    context = cc_common.create_compilation_context(headers = depset([precompiled, header] + ctx.files.hdrs))
    return [DefaultInfo(files = depset([precompiled])), CcInfo(compilation_context = context)]

precompiled_headers = rule(
    implementation = _precompiled_headers_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(
            doc = "The files of this package that `includes` reaches.",
            allow_files = [".h"],
            mandatory = True,
        ),
        "includes": attr.string_list(
            doc = "What is precompiled: names of `hdrs`.",
            mandatory = True,
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_plugin": attr.label(
            default = "//third_party/precompiled:instantiate_templates.so",
            allow_single_file = True,
            cfg = "host",
        ),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
