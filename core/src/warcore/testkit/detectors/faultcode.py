"""The signal handler of the page guard: machine code for Linux on x86-64, and what it writes.

A touch of a closed page may come from any thread: with Python's lock held, or without it while the
holder waits for that very thread; in the middle of a C loop; in a worker that Python never saw. So
the handler must not enter Python. These are its instructions, assembled once, so that no compiler
is needed where it runs; a test assembles them again. They call the kernel and nothing else.

What it does for a fault within a watched range: note who touched what, let the page be read and
written, and return; the instruction runs again. Any other fault belongs to whom it belonged
before. While only one earlier action is known, a function is jumped to with all that the kernel
gave us; a default, or a function that asked to be called once, is put back in force and the signal
comes again. Actions above it are those of others who took the signal away from us: they may know
our address and hand the fault on to us, so each is put back in force and taken off the list, and
the next fault that is not ours goes one further down. It ends at the first action in any case.
"""

from __future__ import annotations

import ctypes
from typing import Final

RECORDS: Final = 4096
LABELS: Final = 64
ACTIONS: Final = 8
RANGES: Final = 512
CODE_BYTES: Final = 4096
"""The code has a page of its own; the state follows."""

LISTING: Final = """
f3 0f 1e fa             | entry:    endbr64
4c 8d 05 f5 0f 00 00    |           lea r8, [rip + entry + 4096]   # the state, a page further on
83 7e 08 02             |           cmp dword ptr [rsi + 8], 2     # si_code: SEGV_ACCERR?
0f 85 d0 00 00 00       |           jne foreign
4c 8b 4e 10             |           mov r9, [rsi + 16]             # si_addr
49 8b 48 10             |           mov rcx, [r8 + 16]             # how many ranges
4d 8d 90 00 04 00 00    |           lea r10, [r8 + 1024]
48 ff c9                | range:    dec rcx
0f 88 b8 00 00 00       |           js foreign
4d 3b 0a                |           cmp r9, [r10]
72 06                   |           jb next
4d 3b 4a 08             |           cmp r9, [r10 + 8]
72 06                   |           jb ours
49 83 c2 10             | next:     add r10, 16
eb e6                   |           jmp range
52                      | ours:     push rdx
56                      |           push rsi
57                      |           push rdi
b8 ba 00 00 00          |           mov eax, 186                   # gettid
0f 05                   |           syscall
31 ff                   |           xor edi, edi                   # its label, 0 if it has none
31 c9                   |           xor ecx, ecx
41 39 84 c8 00 02 00 00 | who:      cmp [r8 + rcx*8 + 512], eax
75 08                   |           jne other
41 8b bc c8 04 02 00 00 |           mov edi, [r8 + rcx*8 + 516]
ff c1                   | other:    inc ecx
83 f9 40                |           cmp ecx, 64
75 e7                   |           jne who
be 01 00 00 00          |           mov esi, 1
f0 49 0f c1 30          |           lock xadd [r8], rsi            # rsi: the number of this record
41 89 f3                |           mov r11d, esi
41 81 e3 ff 0f 00 00    |           and r11d, 4095                 # where it lies in the ring
41 c1 e3 06             |           shl r11d, 6
4f 8d 9c 18 00 40 00 00 |           lea r11, [r8 + r11 + 16384]
4d 89 4b 08             |           mov [r11 + 8], r9
41 89 43 20             |           mov [r11 + 32], eax
41 89 7b 24             |           mov [r11 + 36], edi
48 8b 82 a8 00 00 00    |           mov rax, [rdx + 168]           # uc_mcontext.gregs[REG_RIP]
49 89 43 10             |           mov [r11 + 16], rax
48 8b 82 c0 00 00 00    |           mov rax, [rdx + 192]           # uc_mcontext.gregs[REG_ERR]
49 89 43 18             |           mov [r11 + 24], rax
48 ff c6                |           inc rsi
49 89 33                |           mov [r11], rsi                 # last: now the record is whole
4c 89 cf                |           mov rdi, r9
48 81 e7 00 f0 ff ff    |           and rdi, -4096                 # its page
be 00 10 00 00          |           mov esi, 4096
ba 03 00 00 00          |           mov edx, 3                     # PROT_READ | PROT_WRITE
b8 0a 00 00 00          |           mov eax, 10                    # mprotect
0f 05                   |           syscall
85 c0                   |           test eax, eax
74 11                   |           jz opened
49 8b 3a                |           mov rdi, [r10]                 # too many mappings: all of it
49 8b 72 08             |           mov rsi, [r10 + 8]
48 29 fe                |           sub rsi, rdi
b8 0a 00 00 00          |           mov eax, 10                    # mprotect
0f 05                   |           syscall
5f                      | opened:   pop rdi
5e                      |           pop rsi
5a                      |           pop rdx
85 c0                   |           test eax, eax
75 01                   |           jnz foreign
c3                      |           ret
49 8b 48 08             | foreign:  mov rcx, [r8 + 8]              # how many earlier actions
48 83 f9 01             |           cmp rcx, 1
76 12                   |           jbe first
48 ff c9                |           dec rcx
49 89 48 08             |           mov [r8 + 8], rcx              # the newest stands in for us
48 c1 e1 05             |           shl rcx, 5
4d 8d 54 08 20          |           lea r10, [r8 + rcx + 32]
eb 16                   |           jmp restore
4d 8d 50 20             | first:    lea r10, [r8 + 32]
49 8b 02                |           mov rax, [r10]
48 83 f8 01             |           cmp rax, 1                     # SIG_DFL or SIG_IGN
76 09                   |           jbe restore
41 83 7a 08 00          |           cmp dword ptr [r10 + 8], 0     # SA_RESETHAND: the top bit
78 02                   |           js restore
ff e0                   |           jmp rax                        # it gets what we got
56                      | restore:  push rsi
bf 0b 00 00 00          |           mov edi, 11
4c 89 d6                |           mov rsi, r10
31 d2                   |           xor edx, edx
41 ba 08 00 00 00       |           mov r10d, 8                    # bytes of a signal mask
b8 0d 00 00 00          |           mov eax, 13                    # rt_sigaction
0f 05                   |           syscall
41 5a                   |           pop r10
41 83 7a 08 00          |           cmp dword ptr [r10 + 8], 0     # si_code > 0?
7f 1e                   |           jg done                        # the instruction runs again
b8 ba 00 00 00          |           mov eax, 186                   # gettid
0f 05                   |           syscall
89 c6                   |           mov esi, eax
b8 27 00 00 00          |           mov eax, 39                    # getpid
0f 05                   |           syscall
89 c7                   |           mov edi, eax
ba 0b 00 00 00          |           mov edx, 11
b8 29 01 00 00          |           mov eax, 297                   # rt_tgsigqueueinfo
0f 05                   |           syscall
c3                      | done:     ret
48 c7 c0 0f 00 00 00    | restorer: mov rax, 15                    # rt_sigreturn
0f 05                   |           syscall
"""
"""Bytes, and the same for people: the System V call handler(signal, siginfo, ucontext)."""

CODE: Final = b"".join(bytes.fromhex(line[:24]) for line in LISTING.strip().splitlines())
RESTORER: Final = CODE.index(bytes.fromhex("48 c7 c0 0f 00 00 00 0f 05"))
"""Where the code lies that the kernel returns to after a handler."""


class Action(ctypes.Structure):
    """The kernel's `struct sigaction`, which is not that of the C library."""

    _fields_ = (
        ("handler", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("restorer", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
    )


class Label(ctypes.Structure):
    """What a thread is at; 0 and 0 where nobody is."""

    _fields_ = (("thread", ctypes.c_uint32), ("label", ctypes.c_uint32))


class Range(ctypes.Structure):
    """Addresses that are watched, the last excluded; empty where none are."""

    _fields_ = (("start", ctypes.c_uint64), ("stop", ctypes.c_uint64))


class Record(ctypes.Structure):
    """One fault."""

    _fields_ = (
        ("number", ctypes.c_uint64),  # counted from 1, written last
        ("address", ctypes.c_uint64),
        ("instruction", ctypes.c_uint64),
        ("error", ctypes.c_uint64),  # the processor's error code: bit 1 is set for a write
        ("thread", ctypes.c_uint32),
        ("label", ctypes.c_uint32),
        ("unused", ctypes.c_uint64 * 3),
    )


class State(ctypes.Structure):
    """What the code and Python share. The listing names the offsets of its parts."""

    _fields_ = (
        ("written", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("ranges_used", ctypes.c_uint64),
        ("_", ctypes.c_uint64),
        ("actions", Action * ACTIONS),
        ("__", ctypes.c_uint64 * 28),
        ("labels", Label * LABELS),
        ("ranges", Range * RANGES),
        ("___", ctypes.c_uint64 * 896),
        ("records", Record * RECORDS),
    )
