"""Flags that several rules share."""

# Compiling these tests takes longer than running them.
UNOPTIMIZED = [
    "-O0",
    "-U_FORTIFY_SOURCE",
]
