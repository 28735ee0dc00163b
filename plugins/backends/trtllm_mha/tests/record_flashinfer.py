"""Writes down the signatures of flashinfer's functions that this package calls, release by release.

    pip download --no-deps flashinfer-python==0.5.3
    python record_flashinfer.py flashinfer_python-0.5.3-py3-none-any.whl ...

The wheels are read, and neither installed nor imported. Writes flashinfer.json, beside this file:
{release: {function: {parameter: its default as text, or null}}}, parameters in their order.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from zipfile import ZipFile

RECORD = Path(__file__).with_name("flashinfer.json")
FUNCTIONS = {
    "trtllm_batch_decode_with_kv_cache": "flashinfer/decode.py",
    "trtllm_batch_context_with_kv_cache": "flashinfer/prefill.py",
}


def signature(source, name):
    """{parameter: its default as text, or None} of a function at the top of a module."""
    (found,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    assert not found.args.kwonlyargs
    assert not found.args.posonlyargs
    names = [each.arg for each in found.args.args]
    defaults = [ast.unparse(each) for each in found.args.defaults]
    return dict(zip(names, [None] * (len(names) - len(defaults)) + defaults, strict=True))


def main():
    record = {}
    for wheel in sys.argv[1:]:
        release = Path(wheel).name.split("-")[1]
        with ZipFile(wheel) as files:
            record[release] = {
                name: signature(files.read(module), name) for name, module in FUNCTIONS.items()
            }
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
