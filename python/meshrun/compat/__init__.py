"""meshrun under the module names of other libraries, for programs that are to stay as they are."""
