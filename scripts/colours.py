"""What the pictures are drawn in: colours for light and for dark pages, and the words for them."""

from __future__ import annotations

from typing import Final

THEMES: Final = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "rail": "#d1d9e0",
        "prepare": "#dfe3e8",
        "collect": "#b6bec9",
        "write": "#f5c26b",
        "wait": "#8c959f",
        "read": "#e5737b",
        "body": "#9cc3f0",
        "alarm": "#c4161f",
        "good": "#1a7f37",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "rail": "#3d444d",
        "prepare": "#3d444d",
        "collect": "#656c76",
        "write": "#9a6a12",
        "wait": "#7d8590",
        "read": "#b5424c",
        "body": "#2b5c94",
        "alarm": "#ff7b72",
        "good": "#56d364",
    },
}
ALIKE: Final = {
    "fills": "write",
    "touch": "write",
    "make": "write",
    "sends": "read",
    "peek": "read",
    "stale": "read",
    "stall": "wait",
}
"""What is drawn as something else is."""
LEGEND: Final = {
    "prepare": "prepares a step",
    "fills": "fills host memory",
    "collect": "takes results",
    "stall": "waits for the device",
    "write": "writes the shared tables",
    "wait": "waits",
    "sends": "copies from host memory",
    "read": "reads the shared tables",
    "peek": "looks at what a forward makes",
    "stale": "reads what another step left",
    "touch": "writes them in a forward",
    "body": "rest of the forward",
    "make": "makes what the next step needs",
    "fence": "the fence",
}
SAYS: Final = {
    "read": "reads",
    "peek": "looks",
    "stale": "old",
    "touch": "writes",
    "make": "makes",
    "sends": "copies",
    "fills": "fills",
    "prepare": "prep.",
    "write": "write",
}
"""What a bar is called in the picture, where it has room."""
