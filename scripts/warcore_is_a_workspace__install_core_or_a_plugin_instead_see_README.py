"""`pip install .` at the root of the workspace ends here, with one clear line."""

MESSAGE = (
    "this folder is a workspace, not a distribution: "
    "type `make demo`, or `pip install ./core` and the plugins you want"
)


def __getattr__(name: str) -> None:
    raise SystemExit(MESSAGE)
