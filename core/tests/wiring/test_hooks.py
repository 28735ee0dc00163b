"""What counts as an answer to a hook, and what is refused with the right name."""

from __future__ import annotations

import pluggy
import pytest
from drafters import Wrong
from toys import RowMajor

from warcore import ForwardMode, SharedReadEnds, Stager, WiringError
from warcore.hooks import ARGUMENTS, read_engine_scope, read_hooks, read_scope, take_votes
from warcore.hookspecs import ANSWERED_BY, EngineHooks, ScopeHooks

impl = pluggy.HookimplMarker("warcore")


def read(kind, plugin):
    return read_hooks({f"{kind}:mine": plugin})


def backend_with(**methods):
    return type("Mine", (RowMajor,), methods)(None)


def test_there_are_four_hooks_and_each_kind_answers_its_own():
    specs = {name for owner in (ScopeHooks, EngineHooks) for name in vars(owner) if name[0] != "_"}
    assert specs == set(ANSWERED_BY) == set(ARGUMENTS)
    assert len(specs) == 4
    kinds = {"backend": RowMajor(None), "spec_algo": Wrong(None), "stager": Staging(None)}
    answered = {
        kind: {h for h, found in read(kind, p).items() if found} for kind, p in kinds.items()
    }
    assert answered == {
        "backend": {"shared_read_ends", "prepare_prefill_shared_read_snapshot"},
        "spec_algo": {"shared_read_ends", "last_shared_read_runner"},
        "stager": {"prefill_shared_read_stager"},
    }


class Staging(Stager):
    def stage(self, batch):
        return True


# ---- near misses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("shared_reads_end", "shared_read_ends"),
        ("shared_read_end", "shared_read_ends"),
        ("shared_reads_ends", "shared_read_ends"),
        ("share_read_ends", "shared_read_ends"),
        ("prepare_prefill_shared_read_snapshots", "prepare_prefill_shared_read_snapshot"),
        ("prepare_shared_read_snapshot", "prepare_prefill_shared_read_snapshot"),
        ("last_shared_reader_runner", "last_shared_read_runner"),
        ("prefill_shared_reads_stager", "prefill_shared_read_stager"),
    ],
)
def test_a_near_miss_of_a_hooks_name_is_refused_with_the_right_name(slip, meant):
    with pytest.raises(WiringError) as raised:
        read("backend", backend_with(**{slip: lambda self: None}))
    assert str(raised.value) == (
        f"backend:mine: {slip} looks like the hook {meant} misspelt\n"
        f"Next: rename it to {meant}, or to something less alike"
    )


@pytest.mark.parametrize("name", ["read_ends", "shared", "snapshot", "stage", "read_shared_rows"])
def test_a_name_of_its_own_is_nobodys_business(name):
    read("backend", backend_with(**{name: lambda self: None}))


def test_a_fact_with_a_name_like_a_hooks_is_no_hook():
    read("backend", backend_with(shared_reads_end=3))


# ---- wrappers, kinds, arguments ------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"wrapper": True}, {"hookwrapper": True}])
def test_a_wrapper_is_refused(options):
    @impl(**options)
    def shared_read_ends(self, forward_mode):
        return (yield)

    with pytest.raises(WiringError, match="backend:mine: shared_read_ends is a wrapper"):
        read("backend", backend_with(shared_read_ends=shared_read_ends))


def test_pluggys_own_marker_is_allowed_and_changes_nothing():
    @impl(tryfirst=True)
    def shared_read_ends(self, forward_mode):
        return SharedReadEnds.POST_REPLAY

    scope = read_scope("mine", backend_with(shared_read_ends=shared_read_ends))
    assert set(scope.ends.values()) == {SharedReadEnds.POST_REPLAY}


@pytest.mark.parametrize("hook", ANSWERED_BY)
@pytest.mark.parametrize("kind", ["backend", "spec_algo", "stager", "graph_runner", "model"])
def test_a_hook_on_a_kind_that_does_not_answer_it_is_refused(kind, hook):
    plugin = type("Mine", (), {hook: lambda self: None})()
    if kind in ANSWERED_BY[hook]:
        read(kind, plugin)
    else:
        with pytest.raises(WiringError, match=f"^{kind}:mine: {hook} is not for a {kind} to"):
            read(kind, plugin)


def test_an_unknown_argument_is_refused_with_those_that_there_are():
    def shared_read_ends(self, mode):
        return SharedReadEnds.PRE_REPLAY

    with pytest.raises(WiringError, match=r"^backend:mine: .*shared_read_ends.*mode") as raised:
        read("backend", backend_with(shared_read_ends=shared_read_ends))
    assert raised.value.next == "shared_read_ends may take forward_mode"


def test_fewer_arguments_are_fine():
    scope = read_scope(
        "mine", backend_with(shared_read_ends=lambda self: SharedReadEnds.PRE_REPLAY)
    )
    assert set(scope.ends.values()) == {SharedReadEnds.PRE_REPLAY}


def test_an_argument_with_a_default_gets_the_value():
    def shared_read_ends(self, forward_mode=ForwardMode.DECODE):
        late = forward_mode is ForwardMode.MIXED
        return SharedReadEnds.UNKNOWN if late else SharedReadEnds.PRE_REPLAY

    scope = read_scope("mine", backend_with(shared_read_ends=shared_read_ends))
    assert scope.ends[ForwardMode.MIXED] is SharedReadEnds.UNKNOWN
    assert scope.ends[ForwardMode.DECODE] is SharedReadEnds.PRE_REPLAY


def test_an_argument_of_the_plugins_own_keeps_its_default():
    def shared_read_ends(self, forward_mode, answer=SharedReadEnds.POST_REPLAY):
        return answer

    scope = read_scope("mine", backend_with(shared_read_ends=shared_read_ends))
    assert set(scope.ends.values()) == {SharedReadEnds.POST_REPLAY}


def test_an_override_needs_no_marker_to_be_heard():
    """With markers, an override that forgot its own was dropped, and the base fenced early."""

    class Marked(RowMajor):
        @impl
        def shared_read_ends(self, forward_mode):
            return SharedReadEnds.PRE_REPLAY

    class Forgot(Marked):
        def shared_read_ends(self, forward_mode):
            return SharedReadEnds.UNKNOWN

    assert set(read_scope("mine", Forgot(None)).ends.values()) == {SharedReadEnds.UNKNOWN}


def test_a_hook_set_on_the_instance_is_heard_too():
    backend = RowMajor(None)
    backend.shared_read_ends = lambda forward_mode: SharedReadEnds.POST_REPLAY
    assert set(read_scope("mine", backend).ends.values()) == {SharedReadEnds.POST_REPLAY}


# ---- reading -------------------------------------------------------------------------------------


def test_a_vote_is_asked_twice_per_mode_at_wiring_and_never_again():
    asked = []

    def shared_read_ends(self, forward_mode):
        asked.append(forward_mode)
        return SharedReadEnds.PRE_REPLAY

    read_scope("mine", backend_with(shared_read_ends=shared_read_ends))
    assert asked == [mode for mode in ForwardMode for _ in range(2)]


def test_a_reader_that_reads_nothing_in_a_mode_has_no_vote_there():
    class Sometimes(Wrong):
        def shared_read_ends(self, forward_mode):
            return SharedReadEnds.IN_REPLAY if forward_mode is ForwardMode.DECODE else None

    (hook,) = read_hooks({"spec_algo:x": Sometimes(None)})["shared_read_ends"]
    assert take_votes("spec_algo:x", hook, mandatory=False) == {
        ForwardMode.DECODE: SharedReadEnds.IN_REPLAY
    }


def test_stagers_are_asked_once_and_keep_their_names():
    asked = []

    class Counting(Staging):
        def prefill_shared_read_stager(self):
            asked.append(self)
            return super().prefill_shared_read_stager()

    class Silent(Staging):
        def prefill_shared_read_stager(self):
            return None

    scope = read_engine_scope(
        Wrong(None), {"a": Counting(None), "b": Silent(None), "c": Counting(None)}
    )
    assert sorted(plugin for plugin, _ in scope.stagers) == ["stager:a", "stager:c"]
    assert len(asked) == 2


def test_a_stager_that_answers_with_no_callable_is_refused():
    class Odd(Staging):
        def prefill_shared_read_stager(self):
            return True

    with pytest.raises(WiringError, match="stager:w: prefill_shared_read_stager returned True"):
        read_engine_scope(None, {"w": Odd(None)})


@pytest.mark.parametrize(("declared", "later"), [(True, True), (False, False)])
def test_whether_a_draft_reads_later_is_what_the_algorithm_declares(declared, later):
    algorithm = type("Mine", (Wrong,), {"later_prefill_reader": declared})(None)
    assert read_engine_scope(algorithm).later_prefill_reader is later


def test_without_an_algorithm_nobody_reads_later():
    assert not read_engine_scope().later_prefill_reader


@pytest.mark.parametrize(
    ("vote", "verify"), [(SharedReadEnds.PRE_REPLAY, None), (SharedReadEnds.UNKNOWN, "UNKNOWN")]
)
def test_an_algorithm_that_reads_behind_the_verify_is_too_late_for_its_event(vote, verify):
    class Reads(Wrong):
        def shared_read_ends(self, forward_mode):
            return vote if forward_mode is ForwardMode.DRAFT_EXTEND else None

    scope = read_scope("row", RowMajor(None), Reads(None))
    own = scope.readers[1].votes.get(ForwardMode.TARGET_VERIFY)
    assert (own and own.name) == verify
