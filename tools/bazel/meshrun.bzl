"""The C++ rules of this repository: Bazel's own, plus the tags that configurations filter by.

torch = True: the target reaches LibTorch; adds the dependency and the tag "torch" (left out under sanitizers).
precompiled = False: the target does without the precompiled headers (//third_party/precompiled) that all others get, those
of LibTorch with torch = True: for copts that g++ refuses together with them.
unoptimized: whether to compile with -O0; True below tests/, save benchmarks. A test that takes longer to run than to
compile says False.
unity = False: each source is compiled alone, not several joined to one (unity.bzl): for sources that define equal names.
gpu = True: the target needs a CUDA toolkit to build and, if a test, a GPU to run; implies torch unless torch = False is
given; adds the tags and builds only with --config=cuda.
Tests get GoogleTest's main() unless own_main = True.
"""

load(":flags.bzl", "UNOPTIMIZED", "is_unoptimized", "optimization", "precompiled_copts", "precompiled_deps")
load(":unity.bzl", "unity_sources")

# As labels: a macro that another repository loads would look for them there.
_LIBTORCH = Label("//third_party/libtorch")
_ONLY_WITH_CUDA = select({
    str(Label("//:cuda")): [],
    "//conditions:default": [str(Label("//tools/bazel:incompatible"))],
})

_SUPPRESSIONS = select({
    str(Label("//:tsan")): [str(Label("//tools/bazel:tsan_suppressions"))],
    "//conditions:default": [],
})

def _attributes(name, attributes, torch, gpu):
    if torch == None:
        torch = gpu
    unoptimized = attributes.pop("unoptimized", is_unoptimized(native.package_name()))
    precompiled = attributes.pop("precompiled", True)
    copts = attributes.pop("copts", [])
    copts = (UNOPTIMIZED if unoptimized else optimization(native.package_name())) + copts
    tags = list(attributes.pop("tags", []))
    deps = attributes.pop("deps", [])
    if torch:
        tags.append("torch")
        deps = deps + [str(_LIBTORCH)]
    if gpu:
        tags.append("gpu")
        attributes["target_compatible_with"] = _ONLY_WITH_CUDA
        if torch:
            deps = deps + [str(_LIBTORCH.relative(":cuda"))]
    if precompiled:
        copts = copts + precompiled_copts(torch, unoptimized)
        deps = deps + precompiled_deps(torch, unoptimized)
    if attributes.pop("unity", True) and "srcs" in attributes:
        passed_on = {key: attributes[key] for key in ["testonly", "target_compatible_with"] if key in attributes}
        attributes["srcs"] = unity_sources(name, attributes["srcs"], tags = tags, **passed_on)
    attributes["copts"] = copts
    attributes["tags"] = tags
    attributes["deps"] = deps
    return attributes

def meshrun_cc_library(name, torch = None, gpu = False, **attributes):
    # linkstatic: an archive alone. Nothing loads a shared library of ours.
    native.cc_library(name = name, linkstatic = True, **_attributes(name, attributes, torch, gpu))

def meshrun_cc_binary(name, torch = None, gpu = False, **attributes):
    attributes = _attributes(name, attributes, torch, gpu)
    attributes["deps"] = attributes["deps"] + _SUPPRESSIONS
    native.cc_binary(name = name, **attributes)

def meshrun_cc_test(name, torch = None, gpu = False, own_main = False, size = "small", **attributes):
    attributes = _attributes(name, attributes, torch, gpu)
    main = str(Label("//third_party/googletest:" + ("gtest" if own_main else "gtest_main")))
    attributes["deps"] = attributes["deps"] + [main] + _SUPPRESSIONS
    native.cc_test(name = name, size = size, **attributes)
