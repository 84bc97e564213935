"""headers_only: what its deps declare, without what they link.

An extension is linked with libmeshrun.so, which has the code: linked a second time, a process would have two of each
registry.
"""

def _headers_only_impl(ctx):
    merged = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    return [CcInfo(compilation_context = merged.compilation_context)]

headers_only = rule(
    implementation = _headers_only_impl,
    attrs = {"deps": attr.label_list(providers = [CcInfo])},
)
