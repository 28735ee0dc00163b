"""The build backend of a folder that builds nothing: `pip install .` at the root ends here."""

MESSAGE = (
    "warcore: this folder is a workspace, not a distribution. "
    "Next: make demo, or pip install ./core and the plugins you want"
)


def __getattr__(_hook: str) -> None:
    raise SystemExit(MESSAGE)
