"""What the host device adds to the contract: real waiting, seeds, and a clean end."""

from __future__ import annotations

import _thread
import itertools
import signal
import subprocess
import sys
import threading

import pytest
import torch

from warcore.device import open_device
from warcore.device.host import HostDevice, host_device
from warcore.errors import ConfigError, DeviceError

THREADED = ("threads", "seeded")


@pytest.fixture(params=THREADED)
def device(request, stream_threads):
    with HostDevice(request.param, seed=3) as device:
        yield device


# Waiting


def test_a_stream_waits_at_a_latch_while_the_other_goes_on(device):
    one, other, latch, log = device.stream("one"), device.stream("other"), device.latch(), []
    late = one.submit(lambda: (latch.wait(), log.append("one")))
    other.submit(log.append, "other").result()
    latch.set()
    late.result()
    assert log == ["other", "one"]


def test_a_ticket_is_not_reached_by_a_later_record_on_another_stream(device):
    one, other, latch, event = (
        device.stream("one"),
        device.stream("other"),
        device.latch(),
        device.event(),
    )
    one.submit(latch.wait)
    held = event.record(one)
    event.record(other).synchronize()
    assert not held.query()
    latch.set()
    held.synchronize()


def test_a_wait_holds_only_what_was_submitted_after_it(device):
    one, other, latch = device.stream("one"), device.stream("other"), device.latch()
    one.submit(latch.wait)
    ticket = device.event().record(one)
    before = other.submit(lambda: "before")
    other.wait(ticket)
    after = other.submit(lambda: "after")
    assert before.result() == "before"
    assert not after.done
    latch.set()
    assert after.result() == "after"


def test_work_that_waits_for_its_own_stream_is_refused(device):
    stream = device.stream("forward")

    def work():
        stream.submit(lambda: None).result()

    with pytest.raises(DeviceError, match="waits for its own end"):
        stream.submit(work).result()
    with pytest.raises(DeviceError, match="own end"):
        stream.submit(device.synchronize).result()


def test_a_stream_uses_as_many_intra_op_threads_as_its_maker(device):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stream = device.stream("forward")
        torch.set_num_threads(before)
        assert stream.submit(torch.get_num_threads).result() == 1
    finally:
        torch.set_num_threads(before)


def test_a_pending_lets_go_of_its_function_and_arguments(device):
    import gc
    import weakref

    class Big:
        pass

    big = Big()
    gone = weakref.ref(big)
    pending = device.stream("forward").submit(lambda big: None, big)
    pending.result()
    del big
    device.synchronize()
    gc.collect()
    assert gone() is None


def test_asking_again_and_again_comes_to_an_end(device):
    one, latch = device.stream("one"), device.latch()
    pending = one.submit(latch.set)
    ticket = device.event().record(one)
    while not (latch.is_set and ticket.query() and pending.done):
        pass


# The end


def test_close_finishes_what_runs_and_drops_what_waits(device):
    stream, begun, go = device.stream("forward"), threading.Event(), threading.Event()

    def work():
        begun.set()
        go.wait()
        return "finished"

    running = stream.submit(work)
    queued = stream.submit(lambda: "never")
    closer = threading.Thread(target=device.close)
    if device.mode == "seeded":
        # The host hands the baton over only where it waits; a closing thread sets all free.
        go.set()
        running.result()
        closer.start()
    else:
        begun.wait()
        closer.start()
        with pytest.raises(DeviceError, match="dropped"):
            queued.result()
        go.set()
    closer.join()
    assert running.result() == "finished"
    assert queued.done


@pytest.mark.parametrize("blocked_on", ["latch", "ticket", "enqueued wait", "result"])
def test_close_wakes_a_blocked_stream_with_an_error(device, blocked_on):
    one, other, latch = device.stream("one"), device.stream("other"), device.latch()
    stuck = one.submit(latch.wait)
    ticket = device.event().record(one)
    if blocked_on == "ticket":
        blocked = other.submit(ticket.synchronize)
    elif blocked_on == "result":
        blocked = other.submit(stuck.result)
    elif blocked_on == "enqueued wait":
        other.wait(ticket)
        blocked = other.submit(lambda: None)
    else:
        blocked = other.submit(latch.wait)
    device.stream("third").submit(lambda: None).result()
    device.close()
    for pending in (stuck, blocked):
        with pytest.raises(DeviceError, match="closed"):
            pending.result()
    with pytest.raises(DeviceError, match="closed"):
        ticket.synchronize()


def test_close_ends_two_streams_that_wait_for_each_other(device):
    one, other, latch = device.stream("one"), device.stream("other"), device.latch()
    pendings = {}

    def wait_for(name):
        latch.wait()
        return pendings[name].result()

    pendings["one"] = one.submit(wait_for, "other")
    pendings["other"] = other.submit(wait_for, "one")
    latch.set()
    device.close()
    for pending in pendings.values():
        assert isinstance(pending.error, DeviceError)


def test_close_from_submitted_work_does_not_wait_for_itself(device):
    stream = device.stream("forward")
    stream.submit(device.close).result()
    device.close()


def test_close_wakes_the_host_thread_that_waits(device):
    stream, latch = device.stream("forward"), device.latch()
    pending = stream.submit(latch.wait)
    closer = threading.Thread(target=device.close)
    closer.start()
    with pytest.raises(DeviceError):
        pending.result()
    closer.join()


def waits_in_block(thread):
    """Whether the thread sleeps in the device's own wait."""
    frame, names = sys._current_frames()[thread.ident], []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names[0] in {"wait", "_hand_over"} and "block" in names


@pytest.mark.parametrize("wait", ["result", "synchronize"])
def test_an_interrupt_gets_through_to_a_waiting_host(device, wait):
    one, latch, go = device.stream("one"), device.latch(), threading.Event()
    pending = one.submit(latch.wait)
    ticket = device.event().record(one)
    # Without work that goes on, a seeded device would report a deadlock instead of waiting.
    device.stream("busy").submit(go.wait)
    host = threading.main_thread()

    def interrupt():
        # Looking without a pause can keep the very thread that is looked at from running.
        while not waits_in_block(host):
            go.wait(0.001)
        signal.pthread_kill(host.ident, signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        pending.result() if wait == "result" else ticket.synchronize()
    go.set()
    killer.join()
    latch.set()
    pending.result()


# Seeds


def interleaving(seed, *, streams=("one", "other"), operations=40):
    log, tensor = [], torch.zeros(2)
    with HostDevice("seeded", seed) as device:

        def work(name):
            for _ in range(operations):
                tensor.add_(1)
                log.append(name)

        queues = [device.stream(name) for name in streams]
        for stream in queues:
            stream.submit(work, stream.name)
        for n in range(5):
            log.append("host")
            queues[n % 2].submit(log.append, "small")
        device.synchronize()
    return log


def test_a_seed_gives_the_same_interleaving_every_time():
    for seed in range(8):
        assert interleaving(seed) == interleaving(seed)


def test_seeds_differ():
    assert len({tuple(interleaving(seed)) for seed in range(8)}) > 4


def test_work_of_two_streams_interleaves_between_operations():
    log = interleaving(0)
    changes = sum(a != b for a, b in itertools.pairwise(log))
    assert changes > 6


def test_a_deadlock_is_an_error_that_lists_what_everybody_waits_for():
    with HostDevice("seeded", 0) as device:
        one, other, latch = device.stream("one"), device.stream("other"), device.latch()
        device.stream("idle")
        one.submit(latch.wait)
        other.wait(device.event().record(one))
        pending = other.submit(latch.set)
        with pytest.raises(DeviceError) as caught:
            pending.result()
        message = str(caught.value)
        assert "nobody can go on" in message
        assert "the host waits for the result of" in message
        assert "stream one waits for latch 1" in message
        assert "stream other waits for record 1 of event 1" in message
        assert "stream idle waits for nothing" in message


def test_a_seeded_device_goes_on_after_a_deadlock_was_mended():
    with HostDevice("seeded", 0) as device:
        latch = device.latch()
        pending = device.stream("one").submit(latch.wait)
        with pytest.raises(DeviceError):
            pending.result()
        latch.set()
        pending.result()


def test_a_seeded_device_refuses_a_second_host_thread():
    with HostDevice("seeded", 0) as device:
        stream, caught = device.stream("one"), []

        def elsewhere():
            try:
                stream.submit(lambda: None).result()
            except DeviceError as error:
                caught.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "one host thread" in str(caught[0])


# Inline


@pytest.fixture
def inline():
    with HostDevice("inline") as device:
        yield device


def test_inline_work_runs_on_the_callers_thread(inline):
    assert inline.stream("forward").submit(_thread.get_ident).result() == _thread.get_ident()


def test_inline_refuses_a_latch_that_nobody_can_open(inline):
    with pytest.raises(DeviceError, match="latch 1 can never be reached"):
        inline.latch().wait()


def test_inline_work_never_runs_inside_work_of_its_own_stream(inline):
    stream, log = inline.stream("forward"), []

    def outer():
        stream.submit(log.append, "inner")
        log.append("outer")

    stream.submit(outer)
    assert log == ["outer", "inner"]


def test_inline_record_on_a_stream_in_mid_work_comes_after_that_work(inline):
    one, other, event = inline.stream("one"), inline.stream("other"), inline.event()
    seen = []

    def record_on_one():
        ticket = event.record(one)
        seen.append(ticket.query())
        return ticket

    ticket = one.submit(lambda: other.submit(record_on_one).result()).result()
    assert seen == [False]
    assert ticket.query()


def test_inline_names_the_ticket_that_can_never_be_reached(inline):
    one, other, event = inline.stream("one"), inline.stream("other"), inline.event()

    def wait_for_outer():
        other.wait(event.record(one))

    with pytest.raises(DeviceError, match="record 1 of event 1 can never be reached"):
        one.submit(lambda: other.submit(wait_for_outer).result()).result()


def test_an_interrupt_within_inline_work_reaches_the_caller(inline):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inline.stream("forward").submit(interrupted)


# Names


@pytest.mark.parametrize("text", ["threads", "inline", "seeded:0", "seeded:12"])
def test_host_modes_by_name(text):
    with host_device(text) as device:
        assert device.mode == text.partition(":")[0]
        assert device.seed == int(text.partition(":")[2] or 0)


@pytest.mark.parametrize("text", ["", "thread", "seeded", "seeded:", "seeded:-1", "seeded:x"])
def test_other_names_are_refused(text):
    with pytest.raises(ConfigError, match="no host device"):
        host_device(text)


def test_open_device_knows_its_words():
    with pytest.raises(ConfigError, match="--device auto"):
        open_device("gpu")
    with open_device("host", "threads") as device:
        assert device.name == "host"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_open_device_takes_the_host_or_says_why_not_cuda():
    with open_device("auto") as device:
        assert device.name == "host"
    with pytest.raises(DeviceError, match="no CUDA device"):
        open_device("cuda")


def test_importing_the_device_layer_imports_no_torch():
    code = "import sys, warcore.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
