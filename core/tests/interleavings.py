"""Random programs over streams, and all that they can do: the ground truth about races.

A program is what the host issues, in order: (actor, kind, what). Actors are streams by a letter,
"H" for the host, and "s" for the host code of work of stream "S". Kinds are R and W of a variable,
REC of a new event by a stream, and WAIT for its record: by a stream, by the host, or by host code.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import attrs

from warcore.testkit.access import Access
from warcore.testkit.detectors.history import History, Touch
from warcore.testkit.detectors.order import Order, device_of, host_of


def random_program(draw, *, streams="SF", host=False, low=6, high=13):
    """A program of `low` to `high` operations over two variables; host: the host takes part."""
    program, events = [], 0
    actors = streams + ("H" + streams.lower() if host else "")
    for _ in range(draw.randint(low, high)):
        actor = draw.choice(actors)
        kind = draw.choices(["R", "W", "REC", "WAIT"], [3, 2, 2, 2])[0]
        if kind in {"R", "W"}:
            program.append((actor, kind, draw.choice("xy")))
        elif kind == "REC" and actor in streams:
            events += 1
            program.append((actor, kind, events))
        else:
            program.append((actor, "WAIT", draw.randint(1, max(1, events))))
    return program


def before(program):
    """For each operation, those that must come earlier on every device, as a bit mask."""
    masks, last, records = [], {}, {}
    for place, (actor, kind, what) in enumerate(program):
        mask = last.get(actor, 0)
        if actor != "H":
            mask |= last.get("H", 0)
        if actor.isupper() and actor != "H":
            mask |= last.get(actor.lower(), 0)
        if kind == "REC":
            records[what] = 1 << place
        if kind == "WAIT":
            mask |= records.get(what, 0)
        masks.append(mask)
        last[actor] = mask | 1 << place
    return masks


def depends_on_timing(program):
    """Whether two legal interleavings differ in what is read or in what is left. Tries them all."""
    masks, full = before(program), (1 << len(program)) - 1
    first, seen, todo = None, set(), [(0, (), ())]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        done, memory, read = state
        if done == full:
            if first is not None and first != state:
                return True
            first = state
        for place, (_, kind, what) in enumerate(program):
            bit = 1 << place
            if done & bit or masks[place] & ~done:
                continue
            held = dict(memory)
            now = read
            if kind == "R":
                now = tuple(sorted((*read, (place, held.get(what, -1)))))
            if kind == "W":
                held[what] = place
            todo.append((done | bit, tuple(sorted(held.items())), now))
    return False


def unordered_pairs(program):
    """The conflicting pairs that nothing orders: by the transitive closure of `before`."""
    closed = []
    for mask in before(program):
        whole = mask
        for place in range(len(closed)):
            if mask >> place & 1:
                whole |= closed[place]
        closed.append(whole)
    return {
        (one, other)
        for other, (actor, kind, what) in enumerate(program)
        for one, (before_actor, before_kind, before_what) in enumerate(program[:other])
        if {kind, before_kind} <= {"R", "W"}
        and "W" in {kind, before_kind}
        and what == before_what
        and actor != before_actor
        and not closed[other] >> one & 1
    }


def accessing(place, kind, what):
    """The access of one operation; its place in the program is its name."""
    return Access(what, "read" if kind == "R" else "write", 0, 8, operation=str(place))


# ---- run by the rules alone ----------------------------------------------------------------------


@attrs.define(eq=False)
class Name:
    """Stands for a stream or an event where only their identity matters."""

    text: str


def races_by_rule(program, *, sweep=False):
    """The racing pairs that the clocks and the history find, without a device.

    sweep: forget after every operation what the rule lets go of.
    """
    order = Order()
    history = History(order.clocks)
    streams, events, found = {}, {}, set()
    for place, (actor, kind, what) in enumerate(program):
        stream = None if actor == "H" else streams.setdefault(actor.upper(), Name(actor.upper()))
        if stream is not None:
            order.start(stream, order.submit(None, place))
        who = device_of(stream) if actor.isupper() and stream is not None else host_of(stream)
        if kind == "REC":
            order.record(stream, events.setdefault(what, Name(str(what))), 1)
        elif kind == "WAIT":
            if what in events and actor.isupper():
                order.wait(stream, events[what], 1)
            elif what in events:
                order.learn(stream, events[what], 1)
        else:
            touch = Touch(
                actor=who,
                epoch=order.clocks.epoch(who),
                access=accessing(place, kind, what),
                turn=(place, 0),
                work="",
                base=0,
                low=0,
                high=8,
            )
            found |= {(earlier.turn[0], place) for earlier in history.add(touch)}
            if actor.islower():
                order.launch(stream)
        if stream is not None:
            order.end(stream, place)
        if sweep:
            history.forget(order.settled(()))
    return found


# ---- run on a device -----------------------------------------------------------------------------


def races_on(device, detector, program):
    """The racing pairs that `detector`, who watches, finds while `device` runs the program."""
    streams, tickets = {}, {}
    for place, (actor, kind, what) in enumerate(program):
        act = None
        if kind in {"R", "W"}:
            access = accessing(place, kind, what)
            act = partial(detector.see, access, by_host=actor.islower())
        elif kind == "WAIT" and what in tickets and not (actor.isupper() and actor != "H"):
            act = tickets[what].synchronize
        if actor == "H":
            act = act or nullcontext
            act()
            continue
        stream = streams.get(actor.upper()) or device.stream(actor.upper())
        streams[actor.upper()] = stream
        if act is not None:
            stream.submit(act)
        elif kind == "REC" and place % 2 and not hasattr(stream, "join"):
            # Within work, where it acts at once; without a thread of the stream it is there then.
            made = []
            stream.submit(lambda made=made: made.append(device.event().record()))
            (tickets[what],) = made
        elif kind == "REC":
            tickets[what] = device.event().record(stream)
        elif what in tickets and place % 2:
            stream.submit(stream.wait, tickets[what])
        elif what in tickets:
            stream.wait(tickets[what])
    device.synchronize()
    return {
        tuple(sorted((int(race.first.operation), int(race.second.operation))))
        for race in detector.races
    }
