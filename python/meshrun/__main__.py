"""`python -m meshrun ...` is the command `meshrun ...`."""

from ._launch import meshrun

meshrun()
