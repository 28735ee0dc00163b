"""Byte-level BPE tokenizers with a chat template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from warcore import ModelError
from warcore_model_llama.refusals import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import tokenizers


class ChatTemplate:
    """A Jinja chat template, rendered in a sandbox as the templates' authors expect it."""

    def __init__(self, source: str, where: str, specials: dict[str, str]) -> None:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self._where = where
        self._specials = specials
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation()]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except Exception as error:
            raise ModelError(
                f"{where}: the chat template is not valid: {one_line(error)}",
                next="fetch the model's files again, or mend its chat template",
            ) from error

    def render(self, messages: list[dict[str, str]]) -> str:
        """The text of a conversation up to where the answer starts."""
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                # Templates ask whether these are None, which what is not defined is not.
                tools=None,
                documents=None,
                **self._specials,
            )
        except Exception as error:
            raw = "continue the raw prompt (--raw)"
            told = any(message["role"] == "system" for message in messages)
            raise ModelError(
                f"{self._where}: the chat template refuses: {one_line(error)}",
                next=f"leave out --system, or {raw}" if told else raw,
            ) from error


def _generation() -> type[jinja2.ext.Extension]:
    """`{% generation %}` marks what a model is trained to say. Here it is what it encloses."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter would escape for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators and tuple(separators),
        sort_keys=sort_keys,
    )


def _refuse(message: str) -> None:
    raise ValueError(message)


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)  # noqa: DTZ005 - templates print the local day


class TextTokenizer:
    """A tokenizer of the package `tokenizers`, with what it does not know: ends and a template.

    start: the token put before raw text; None where the tokenizer adds its own or wants none.
    where: the file, for messages.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        eos_ids: frozenset[int],
        template: ChatTemplate | None,
        where: str,
        start: int | None = None,
    ) -> None:
        self.eos_ids = eos_ids
        self._core = core
        self._template = template
        self._where = where
        self._start = [] if start is None else [start]

    def encode(self, text: str) -> list[int]:
        """Ids of raw text."""
        return self._start + self._core.encode(_utf8(text)).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self._core.decode(list(ids), skip_special_tokens=True))

    def chat(self, prompt: str, system: str | None) -> list[int]:
        """Ids under the chat template; ModelError if the model has none."""
        if self._template is None:
            raise ModelError(
                f"{self._where} has no chat template", next="generate from the raw prompt (--raw)"
            )
        messages = [{"role": "system", "content": system}] if system is not None else []
        text = self._template.render([*messages, {"role": "user", "content": prompt}])
        return list(self._core.encode(_utf8(text), add_special_tokens=False).ids)


def _utf8(text: str) -> str:
    """`text` without lone surrogates, which the tokenizer library cannot take."""
    return text.encode(errors="replace").decode()
