"""Whether this Python can make the workspace's environment; run by a Python of any age."""

# ruff: noqa: UP031 -- an old Python must be able to read this file, to say that it is old
import sys

OLDEST = (3, 10)


def why_not(version, missing):  # noqa: ANN001, ANN201 -- annotations are younger than some Pythons
    """One line that says what is wrong and what to do, or an empty one."""
    name = "python%d.%d" % version
    if version < OLDEST:
        line = "warcore needs Python 3.10 or newer and this is %s. " % name
        return line + "Next: name another, as in make demo PYTHON=python3.12"
    if missing:
        line = "%s lacks the module %s, without which it makes no virtual environment. "
        return line % (name, missing) + "Next: on Debian and Ubuntu, apt install %s-venv" % name
    return ""


def missing_module():  # noqa: ANN201
    """The first module of the standard library that a distribution left out, or an empty name."""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError as error:
        return str(error).split("'")[1]
    return ""


if __name__ == "__main__":
    line = why_not(sys.version_info[:2], missing_module())
    if line:
        sys.exit(line)
