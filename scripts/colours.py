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
LEGEND: Final = {
    "prepare": "prepares a step",
    "collect": "takes results",
    "write": "writes the shared tables",
    "wait": "waits",
    "read": "reads the shared tables",
    "body": "rest of the forward",
    "fence": "the fence",
}
