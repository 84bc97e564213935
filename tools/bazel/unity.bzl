"""unity_sources: the .cc files of a target, joined into few, so that what all of them use is compiled once.

docs/decisions/0012-joined-sources.md has the reason and the figures.
"""

# As many files become one. One changed file compiles its neighbours again: in 5 to 20 s.
_FILES = 6

# Files come and go here: two new ones with one name would only meet in the other's build.
_APART = ["parallel/shard", "tests/parallel/shard"]

def _is_apart(package):
    for folder in _APART:
        if (package + "/").startswith(folder + "/"):
            return True
    return False

def _join_impl(ctx):
    # The compiler's messages and assertions name the original files.
    commands = ["echo '#line 1 \"{0}\"'; cat '{0}'; echo".format(src.path) for src in ctx.files.srcs]
    ctx.actions.run_shell(
        command = "{{ {}; }} >'{}'".format("; ".join(commands), ctx.outputs.out.path),
        inputs = ctx.files.srcs,
        outputs = [ctx.outputs.out],
        mnemonic = "JoinSources",
        progress_message = "Joining sources of %{label}",
    )

_join = rule(
    implementation = _join_impl,
    attrs = {
        "out": attr.output(mandatory = True),
        "srcs": attr.label_list(
            allow_files = [".cc"],
            mandatory = True,
        ),
    },
)

def unity_sources(name, srcs, **attributes):
    """What to give as `srcs` instead of these.

    Args:
      name: of the target that compiles them.
      srcs: its files, all in its package; headers stay.
      **attributes: tags, testonly and others of the rules that join.

    Returns:
      srcs, its .cc files replaced with joined ones.
    """
    sources = [src for src in srcs if src.endswith(".cc")]
    if len(sources) < 2 or _is_apart(native.package_name()):
        return srcs
    units = (len(sources) + _FILES - 1) // _FILES
    joined = []
    for unit in range(units):
        out = "{}_unity_{}.cc".format(name, unit + 1)
        _join(
            name = "{}_unity_{}".format(name, unit + 1),
            srcs = sources[len(sources) * unit // units:len(sources) * (unit + 1) // units],
            out = out,
            visibility = ["//visibility:private"],
            **attributes
        )
        joined.append(out)
    return [src for src in srcs if not src.endswith(".cc")] + joined
