"""embedded_files: a library whose function returns files of the tree, as bytes of the program."""

load("//tools/bazel:meshrun.bzl", "meshrun_cc_library")

def embedded_files(name, srcs, namespace, function, **attributes):
    """The library defines std::span<const meshrun::EmbeddedFile> namespace::function().

    Args:
      name: the library.
      srcs: files of this package; each is found by its path below the package.
      namespace: of the function.
      function: its name. Who calls it declares it.
      **attributes: of the library.
    """
    prefix = native.package_name() + "/"
    native.genrule(
        name = name + "_source",
        srcs = srcs,
        outs = [name + ".cc"],
        cmd = "$(location //core/embed) {} {} {} $(SRCS) > $@".format(namespace, function, prefix),
        tools = ["//core/embed"],
    )
    meshrun_cc_library(
        name = name,
        srcs = [name + ".cc"],
        precompiled = False,
        unity = False,
        deps = ["//core/embed:embedded_file"],
        **attributes
    )
