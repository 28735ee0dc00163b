"""Why model files are refused, and what to do about it: one function per cause.

Each gives a ModelError of two lines to raise: file and fault, then the remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from warcore import ModelError

if TYPE_CHECKING:
    from pathlib import Path

SERVED: Final = "--model smollm2, or --model random:tiny to try things out"


def damaged(path: Path, fault: str) -> ModelError:
    """The file contradicts itself or ends early: its publisher's copy would not."""
    return ModelError(
        f"{path}: {fault}", next=f"fetch {path.name} again: this copy is damaged or incomplete"
    )


def mismatched(path: Path, fault: str) -> ModelError:
    """Files of one directory contradict each other. path: the one where it shows."""
    return ModelError(
        f"{path}: {fault}",
        next=f"fetch {path.name} and config.json again, both of the same model and revision",
    )


def unserved(path: Path, trait: str) -> ModelError:
    """The file may be sound, but these models do not compute what it asks for."""
    return ModelError(f"{path}: {trait}", next=f"use a plain Llama model, such as {SERVED}")


def foreign_tokenizer(path: Path, trait: str) -> ModelError:
    """A GGUF file whose tokenizer is not known exactly; a nearly right one makes wrong text."""
    return ModelError(
        f"{path}: {trait}",
        next="use the model's original directory, with its tokenizer.json: "
        "--model safetensors:DIRECTORY",
    )


def one_line(error: Exception) -> str:
    """What another package says, whatever its length, as a part of a message."""
    return " ".join(str(error).split())


def unreadable(path: Path, error: OSError) -> ModelError:
    """The system did not let the file be read."""
    if isinstance(error, FileNotFoundError):
        remedy = f"put {path.name} into {path.parent}"
    else:
        remedy = f"see that {path.name} is a file which you may read: ls -l {path}"
    return ModelError(f"{path} cannot be read: {error.strerror or error}", next=remedy)
