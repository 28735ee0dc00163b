"""What a model family owes to whoever names a model or sends it text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from warcore.errors import ModelError
from warcore.testkit.models.references import loaded, tries
from warcore.testkit.outcome import Failure, Refuted
from warcore.testkit.packages.interpreter import answered
from warcore.testkit.packages.task import task_of
from warcore.testkit.runs.check import check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from warcore.testkit.subject import Subject

WORDS: Final = ("no-such-model-anywhere", "another-family:thing", "\u2603")
"""References of somebody else."""
TEXTS: Final = (
    *WORDS,
    *("", " ", "-", ":", "a:b:c", "nul\0byte", "\udc80", "x" * 5000, "/x" * 3000),
    *("../no/such/path", "~nobody-has-this-name/model", "/"),
)
"""What people and other families' references can hold; none is a model of this family."""
SECONDS: Final = 2.0
"""Of the processor, for all of them: a thousand times what comparing a word takes."""


@check("model", needs=("plugin.loads",))
def recognises_is_cheap(subject: Subject) -> None:
    """`recognises` and `describe` read headers at most: no torch, no network, no second of work.

    To look into a configuration vLLM imported a module of kernels (#14910); that made a CUDA
    context, and an engine that forked afterwards could not start.

    Import torch inside `load`, and the modules that need it too; compare names before you open a
    file, and open no more than its header.
    """
    told = _recognised(subject)
    if told["costly"]:
        what, where = told["costly"][0]
        raise Refuted(
            Failure("recognising and describing are cheap", what, where, ("a fresh interpreter",))
        )
    if told["seconds"] > SECONDS:
        count, seconds = len(told["answers"]), told["seconds"]
        raise Refuted(
            Failure("recognising is cheap", f"{count} references took {seconds:.1f} s of work")
        )


@check("model", needs=("plugin.loads",))
def recognises_any_text(subject: Subject) -> None:
    """`recognises` gives a canonical reference, None or a ModelError, whatever it is asked.

    Two families of this project let an OSError out for a reference as long as a prompt, and a
    RuntimeError for `~nobody/model`, when this check first asked them: a family that is asked for
    everybody's references stopped whoever had mistyped one.

    Return None for what is not yours, before you touch the file system; treat an error of a path as
    a file that is not there. What you return must be recognised as itself.
    """
    for answer in _recognised(subject)["answers"]:
        if subject.wants(_shown(answer["text"])):
            _refute_answer(answer)


@check("model", needs=("model.describe_agrees_with_load",))
def tokenizer_is_sane(subject: Subject) -> None:
    """Text becomes ids of the model's vocabulary and comes back; some of them end an answer.

    vLLM took the end token of a chat model from one file of two (#4180): its answers went on with
    the other's until the context was full.

    Let `encode` take any text and `decode` any ids below `vocab_size`; collect `eos_ids` from every
    file that names one.
    """
    it = loaded(subject)
    tokenizer, vocab = it.model.tokenizer, it.described.vocab_size
    ends: Any = tokenizer.eos_ids
    if not isinstance(ends, (set, frozenset)) or not ends or not _are_ids(ends, vocab):
        raise Refuted(Failure(f"eos_ids are ids below {vocab}, at least one", f"they are {ends!r}"))
    for text in ("The quick brown fox, 12 times.", "na\u00efve \u2603 \U0001f600\n\tend", ""):
        ids = _call("encode", tokenizer.encode, text)
        if not isinstance(ids, list) or not _are_ids(ids, vocab):
            raise Refuted(Failure(f"encode gives ids below {vocab}", f"{text!r} gives {ids!r}"))
        back = _call("decode", tokenizer.decode, ids)
        if text.isascii() and back.strip() != text:
            raise Refuted(Failure("decode gives back what was encoded", f"{text!r} is {back!r}"))
        for end in range(len(ids)):
            _refute_no_text(_call("decode", tokenizer.decode, ids[:end]))
    for token in (0, vocab // 2, vocab - 1, *ends):
        _refute_no_text(_call("decode", tokenizer.decode, [token]))
    for system in (None, "Be brief."):
        try:
            ids = _call("chat", tokenizer.chat, "Hello", system)
        except ModelError:
            continue
        if not ids or not _are_ids(ids, vocab):
            raise Refuted(Failure(f"chat gives ids below {vocab}", f"it gives {ids!r}"))


def _recognised(subject: Subject) -> dict[str, Any]:
    texts = [*TEXTS, *tries(subject)]
    function = "warcore.testkit.models.recognising:recognise"
    return answered(function, {**task_of(subject), "texts": texts})


def _refute_answer(answer: Mapping[str, Any]) -> None:
    text, value, error = answer["text"], answer["value"], answer["error"]
    shown = _shown(text)
    rule = "recognises gives a text or None, or raises ModelError"
    if error is not None and not answer["typed"]:
        raise Refuted(Failure(rule, f"it raises {error[:200]}", cell=shown))
    if isinstance(value, dict):
        raise Refuted(Failure(rule, f"it gives {value['is']}", cell=shown))
    if text in WORDS and (value is not None or error is not None):
        what = f"{shown} is {value!r}" if error is None else f"{shown} raises {error}"
        raise Refuted(Failure("what belongs to somebody else is None", what, cell=shown))
    if isinstance(value, str) and answer["again"] != value:
        what = f"{value!r} is recognised as {answer['again']!r}"
        raise Refuted(Failure("a canonical reference is recognised as itself", what, cell=shown))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:20]}... ({len(text)} characters)")


def _are_ids(values: Any, vocab: int) -> bool:
    return all(type(value) is int and 0 <= value < vocab for value in values)


def _call(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a method of the tokenizer gives. Refuted if it raises anything but a ModelError."""
    try:
        return function(*arguments)
    except ModelError:
        raise
    except Exception as error:
        shown = ", ".join(map(repr, arguments))
        raise Refuted(
            Failure(f"{name} takes any text or ids", f"{name}({shown}) raised {error!r}")
        ) from error


def _refute_no_text(value: object) -> None:
    if not isinstance(value, str):
        raise Refuted(Failure("decode gives text", f"it gives {value!r}"))
