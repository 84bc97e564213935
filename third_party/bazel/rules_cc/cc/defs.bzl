"""Bazel's built-in C++ rules under the names that other repositories load from rules_cc."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_proto_library = native.cc_proto_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
fdo_prefetch_hints = native.fdo_prefetch_hints
fdo_profile = native.fdo_profile
objc_import = native.objc_import
objc_library = native.objc_library

def _absent(**_kwargs):
    """Stands for a rule that is loaded by @bazel_tools but never built here."""

cc_flags_supplier = _absent
cc_toolchain_alias = native.cc_toolchain_alias
compiler_flag = _absent
