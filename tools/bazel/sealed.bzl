"""A library with the headers of its interface alone. With cc_library every header of the deps comes along, and each is part of
the key under which a dependent's object is cached: a change of one recompiles all dependents, although none includes it."""

def _sealed_cc_library_impl(ctx):
    return [
        CcInfo(
            compilation_context = ctx.attr.interface[CcInfo].compilation_context,
            linking_context = ctx.attr.implementation[CcInfo].linking_context,
        ),
        DefaultInfo(files = ctx.attr.implementation[DefaultInfo].files),
    ]

sealed_cc_library = rule(
    implementation = _sealed_cc_library_impl,
    attrs = {
        "implementation": attr.label(
            mandatory = True,
            providers = [CcInfo],
            doc = "What is linked.",
        ),
        "interface": attr.label(
            mandatory = True,
            providers = [CcInfo],
            doc = "The headers that dependents may include. It is linked as part of the implementation.",
        ),
    },
    provides = [CcInfo],
)
