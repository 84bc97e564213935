"""unity_sources: the .cc files of a target, joined into few, so that what all of them use is compiled once.

docs/decisions/0012-joined-sources.md has the reason and the figures.
"""

# As many files become one. One changed file compiles its neighbours again: in 5 to 25 s.
_FILES = 8

# What a file names so that registers something when its program starts: each has one.
_OWN_NAMES = ["kRegistered"]

def _join_impl(ctx):
    commands = []
    for number, src in enumerate(ctx.files.srcs):
        for name in ctx.attr.own_names:
            commands.append("echo '#define {0} {0}_{1}'".format(name, number))

        # The compiler's messages and assertions name the original files.
        commands.append("echo '#line 1 \"{0}\"'; cat '{0}'; echo".format(src.path))
        for name in ctx.attr.own_names:
            commands.append("echo '#undef {}'".format(name))
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
        "own_names": attr.string_list(),
        "srcs": attr.label_list(
            allow_files = [".cc"],
            mandatory = True,
        ),
    },
)

def unity_sources(name, srcs, own_names = [], **attributes):
    """What to give as `srcs` instead of these.

    Args:
      name: of the target that compiles them.
      srcs: its files, all in its package; headers stay.
      own_names: what each of them defines for itself alone, by the same name.
      **attributes: tags, testonly and others of the rules that join.

    Returns:
      srcs, its .cc files replaced with joined ones.
    """
    sources = [src for src in srcs if src.endswith(".cc")]
    if len(sources) < 2:
        return srcs
    units = (len(sources) + _FILES - 1) // _FILES
    joined = []
    for unit in range(units):
        out = "{}_unity_{}.cc".format(name, unit + 1)
        _join(
            name = "{}_unity_{}".format(name, unit + 1),
            srcs = sources[len(sources) * unit // units:len(sources) * (unit + 1) // units],
            out = out,
            own_names = own_names + _OWN_NAMES,
            visibility = ["//visibility:private"],
            **attributes
        )
        joined.append(out)
    return [src for src in srcs if not src.endswith(".cc")] + joined
