"""libtorch_precompiled: LibTorch's headers, compiled once by g++ for all sources with the same flags.

g++ takes a precompiled header only from a compilation whose target options and used macros agree (-O0 defines other
macros than -O2), so there is one for each set of `copts` here. It is named `<name>.h.gch`, and no `<name>.h` lies beside
it: with -include, g++ fails where it cannot take it, rather than read text instead.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _libtorch_precompiled_impl(ctx):
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
    libraries = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps]).compilation_context
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    dependencies = ctx.actions.declare_file(ctx.label.name + ".d")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        include_directories = libraries.includes,
        quote_include_directories = libraries.quote_includes,
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

    # The list of headers goes into the result: -fpch-deps of the users writes it into their .d files, from which Bazel
    # knows when to compile them again.
    arguments.add_all(["-MD", "-MF", dependencies, "-x", "c++-header", ctx.file.header, "-o", precompiled])
    ctx.actions.run(
        executable = compiler,
        arguments = [arguments],
        inputs = depset([ctx.file.header], transitive = [libraries.headers, toolchain.all_files]),
        outputs = [precompiled, dependencies],
        env = {"PATH": "/bin:/usr/bin:/usr/local/bin"},
        # Linking LibTorch's 9,000 headers into a sandbox takes longer than compiling.
        execution_requirements = {"no-sandbox": "1"},
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling LibTorch's headers for {}".format(ctx.label.name),
    )
    context = cc_common.create_compilation_context(headers = depset([precompiled, ctx.file.header]))
    return [DefaultInfo(files = depset([precompiled])), CcInfo(compilation_context = context)]

libtorch_precompiled = rule(
    implementation = _libtorch_precompiled_impl,
    attrs = {
        "copts": attr.string_list(),
        "deps": attr.label_list(providers = [CcInfo]),
        "header": attr.label(
            allow_single_file = [".h"],
            mandatory = True,
        ),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
