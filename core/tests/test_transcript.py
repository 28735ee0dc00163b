"""Text that grows token by token: split characters, stop strings, and what may be shown."""

from __future__ import annotations

import random

import pytest

from warcore import SamplingParams
from warcore.request import FinishReason, Request
from warcore.transcript import Transcript


class Bytes:
    """One token per piece of bytes; incomplete UTF-8 becomes U+FFFD, as tokenizers have it."""

    eos_ids = frozenset()

    def __init__(self, *pieces):
        self.pieces = [p.encode() if isinstance(p, str) else p for p in pieces]

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", errors="replace")


def shown(pieces, *stop):
    """(what was visible after each token, the transcript when no more came)."""
    ids, seen = [], []
    transcript = Transcript(Bytes(*pieces), ids, stop)
    for i in range(len(pieces)):
        ids.append(i)
        if transcript.advance():
            break
        seen.append(transcript.visible())
    transcript.finish()
    return seen, transcript


def test_text_grows_with_the_tokens():
    seen, transcript = shown(["Hel", "lo", " you"])
    assert seen == ["Hel", "Hello", "Hello you"]
    assert transcript.text == "Hello you"
    assert not transcript.stopped


def test_a_character_split_over_tokens_shows_when_it_is_whole():
    euro = "€".encode()
    seen, transcript = shown(["1 ", euro[:1], euro[1:2], euro[2:], "."])
    assert seen == ["1 ", "1 ", "1 ", "1 €", "1 €."]
    assert transcript.text == "1 €."


def test_a_character_that_never_becomes_whole_counts_at_the_end():
    seen, transcript = shown(["a", "€".encode()[:2]])
    assert seen == ["a", "a"]
    assert transcript.text == "a\ufffd"


def test_bytes_that_are_no_text_show_once_something_follows():
    seen, _ = shown(["a", b"\xff", "b"])
    assert seen == ["a", "a", "a\ufffdb"]


def test_whatever_the_split_the_text_is_the_same():
    text = "Grüße, 世界! 🎉🎉 ends é."
    raw = text.encode()
    draw = random.Random(2)
    for _ in range(100):
        cuts = sorted(draw.sample(range(1, len(raw)), 8))
        ends = zip([0, *cuts], [*cuts, len(raw)], strict=True)
        seen, transcript = shown([raw[a:b] for a, b in ends])
        assert transcript.text == text
        assert all(text.startswith(part) for part in seen)


def test_a_stop_string_across_tokens_ends_the_text_before_it():
    seen, transcript = shown(["one ", "EN", "D two"], "END")
    assert transcript.stopped
    assert transcript.text == "one "
    assert seen == ["one ", "one "]


def test_a_stop_string_over_many_tokens():
    _, transcript = shown(list("abSTOPcd"), "STOP")
    assert (transcript.stopped, transcript.text) == (True, "ab")


def test_a_stop_string_within_one_token():
    _, transcript = shown(["abc"], "b")
    assert (transcript.stopped, transcript.text) == (True, "a")


def test_of_several_stop_strings_in_one_token_the_first_place_counts():
    assert shown(["xab"], "b", "ab")[1].text == "x"
    assert shown(["xab"], "ab", "b")[1].text == "x"


def test_overlapping_stop_strings_end_where_the_first_is_complete():
    _, transcript = shown(["x", "a", "b", "c"], "abc", "b")
    assert (transcript.stopped, transcript.text) == (True, "xa")


def test_a_stop_string_that_overlaps_itself():
    assert shown(list("aab"), "ab")[1].text == "a"
    assert shown(list("ababac"), "abac")[1].text == "ab"


def test_a_stop_string_of_split_characters():
    bell = "🔔".encode()
    assert shown(["go ", bell[:3], bell[3:], " on"], "🔔")[1].text == "go "


def test_nothing_is_decoded_after_the_stop():
    ids = [0, 1]
    transcript = Transcript(Bytes("a", "X", "b"), ids, ("X",))
    assert transcript.advance()
    ids.append(2)
    assert transcript.advance()
    transcript.finish()
    assert transcript.text == "a"


def test_a_tail_that_could_become_a_stop_string_is_held_back_and_then_given():
    seen, transcript = shown(["x", "</", "s", "ome>"], "</stop>")
    assert seen == ["x", "x", "x", "x</some>"]
    assert transcript.text == "x</some>"


def test_the_longest_tail_is_held_back():
    seen, _ = shown(["zab", "a"], "abac", "ad")
    assert seen == ["z", "z"]


def test_without_stop_strings_nothing_is_held_back():
    assert shown(["<", "/"])[0] == ["<", "</"]


@pytest.mark.parametrize("seed", range(50))
def test_what_was_shown_is_never_taken_back(seed):
    draw = random.Random(seed)
    pieces = ["".join(draw.choices("ab", k=draw.randint(1, 3))) for _ in range(30)]
    stop = ["".join(draw.choices("ab", k=draw.randint(3, 7))) for _ in range(3)]
    seen, transcript = shown(pieces, *stop)
    for earlier, later in zip(seen, [*seen[1:], transcript.text], strict=False):
        assert later.startswith(earlier)
    assert not any(s in transcript.text for s in stop)
    if transcript.stopped:
        whole = "".join(pieces)
        rest = whole[len(transcript.text) :]
        assert any(rest.startswith(s) for s in stop)
    else:
        assert transcript.text == "".join(pieces)


def test_an_answer_cut_at_a_stop_string_in_its_last_token_has_stopped():
    """The token also begins a character, and with it was held back until no token could follow."""

    class Tokenizer:
        eos_ids = frozenset()
        pieces = (b"a", b" \xf0\x9f", b"\x99\x82")

        def decode(self, ids):
            return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    params = SamplingParams(max_new_tokens=2, stop=" ")
    request = Request.new(0, None, [0], params, tokenizer=Tokenizer(), max_context=100, seed=0)
    request.accept(0)
    request.accept(1)
    assert (request.transcript.text, request.finish_reason) == ("a", FinishReason.STOP)
