"""Which tests below are not of this repository."""

# The samples' own; tests/test_authors.py runs each package as its author would.
collect_ignore = ["authors"]
