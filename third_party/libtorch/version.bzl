"""The version of LibTorch that meshrun is built with unless another is asked for (tools/setup --libtorch).

Those that can be asked for have a file in wheels/; shims.h holds what differs between them.
"""

LIBTORCH_VERSION = "2.15.0"
