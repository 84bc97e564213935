"""How libraries of Debian's packages are linked."""

# Loading gRPC with its 60 shared libraries takes a process 30 ms, and every daemon, supervisor and rank is a process:
# programs carry it in themselves. ThreadSanitizer, which cannot see into Debian's code, knows it by the libraries' names.
# A shared library of ours cannot hold them: they are not position-independent.
def shared_or_archives(shared, archives):
    return select({
        str(Label("//:tsan")): shared,
        str(Label("//:shared_debian")): shared,
        "//conditions:default": archives,
    })

def archives(names):
    """Archives that refer to each other in any order."""
    return ["-Wl,--start-group"] + ["-l:lib%s.a" % name for name in names] + ["-Wl,--end-group"]
