"""Signals that come at a bad moment: swallowed by a library, unheard by it, repeated, or while everything hangs."""

import signal
import time

import pytest

from gateway.shell.interrupts import DEEP_S, exit_code
from tests.support.processes import Command

BEGIN = """
import signal, subprocess, sys, threading, time
from gateway.shell.interrupts import Interrupts, run_interruptible

def say(word):
    print(word, flush=True)
"""
SWALLOWED = """
import pathlib, tempfile
folder = tempfile.TemporaryDirectory()
pathlib.Path(folder.name, "optional_part.py").write_text(
    "import time\\n"
    "try:\\n"
    "    print('waiting', flush=True)\\n"
    "    time.sleep(30)\\n"
    "except:\\n"
    "    print('swallowed', flush=True)\\n"
)
sys.path.insert(0, folder.name)

def command(interrupts):
    import optional_part
    time.sleep(30)

sys.exit(run_interruptible(command))
"""
UNHEARD = """
import ctypes

def command(interrupts):
    child = subprocess.Popen(["sleep", "60"])
    lock, take = ctypes.create_string_buffer(256), ctypes.CDLL(None).pthread_mutex_lock
    take(lock)
    say("waiting")
    take(lock)  # for ever, in a library that looks at no signal

sys.exit(run_interruptible(command))
"""
REPEATED = """
def command(interrupts):
    try:
        say("waiting")
        time.sleep(30)
    finally:
        say("giving back")
        time.sleep(1)
        say("given back")

sys.exit(run_interruptible(command))
"""
HANGING = """
with Interrupts(patience_s=1.0):
    child = subprocess.Popen(["sleep", "60"])
    try:
        say("waiting")
        time.sleep(30)
    finally:
        while True:
            time.sleep(0.1)
"""
IGNORED = """
signal.signal(signal.SIGINT, signal.SIG_IGN)

def command(interrupts):
    say("waiting")
    time.sleep(1)
    return 0

sys.exit(run_interruptible(command))
"""
BORN = """
import os

def hook():
    if not told:
        told.append(say("waiting"))
        time.sleep(1)

told = []
os.register_at_fork(after_in_parent=hook)

def command(interrupts):
    child = subprocess.Popen(["sleep", "60"], preexec_fn=int)  # which forks, with the hooks
    say(f"born {child.pid > 0}")
    time.sleep(30)

sys.exit(run_interruptible(command))
"""
WAITS = """
from gateway.shell.interrupts import begin_to_wait, run_interruptible

def command(interrupts):
    begin_to_wait()
    try:
        say("waiting")
        time.sleep(30)
    finally:
        say("given back")

sys.exit(run_interruptible(command))
"""
EARLY = """
import gateway.entry

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "gateway.cli":
            say("waiting")
            time.sleep(30)

sys.meta_path.insert(0, Slow())
sys.exit(gateway.entry.main())
"""


def told(script, number=signal.SIGTERM, times=1, between_s=0.0):
    """Run a script, send it signals once it waits; exit code, what it printed, its line, seconds to the end."""
    with Command([], script=BEGIN + script) as command:
        command.await_(lambda: "waiting" in command.read()[0])
        began_s = time.monotonic()
        for _ in range(times):
            command.process.send_signal(number)
            time.sleep(between_s)
        code, printed, said = command.finish(30)
        took_s = time.monotonic() - began_s
        command.assert_nothing_left()
    return code, printed.split("\n")[:-1], said, took_s


def test_interrupt_while_the_commands_are_imported_is_one_line():
    code, printed, said, took_s = told(EARLY, signal.SIGINT)
    assert (code, printed, said) == (130, ["waiting"], "error: interrupted\n") and took_s < 25


@pytest.mark.parametrize("command", ["serve", "live"])
def test_sigterm_while_a_server_is_imported_ends_it_in_order(command):
    code, printed, said, took_s = told(f"sys.argv[1:] = ['{command}']\n" + EARLY)
    assert (code, printed, said) == (0, ["waiting"], "") and took_s < 25


def test_sigterm_before_a_server_has_begun_ends_it_in_order_and_ctrl_c_does_not():
    assert told(WAITS)[:3] == (0, ["waiting", "given back"], "")
    assert told(WAITS, signal.SIGINT)[:3] == (130, ["waiting", "given back"], "error: interrupted\n")


def test_interrupt_swallowed_by_an_import_comes_again():
    code, printed, said, _ = told(SWALLOWED)
    assert (code, printed, said) == (143, ["waiting", "swallowed"], "error: terminated\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_that_a_library_does_not_hear_ends_the_process_and_its_children(number):
    code, _, said, took_s = told(UNHEARD, number)
    assert code == exit_code(number)
    assert "what had not ended after" in said and said.count("\n") == 1
    assert DEEP_S < took_s < DEEP_S + 20


def test_interrupt_repeated_does_not_cut_short_what_is_given_back():
    code, printed, said, _ = told(REPEATED, signal.SIGINT, times=8, between_s=0.1)
    assert (code, printed, said) == (130, ["waiting", "giving back", "given back"], "error: interrupted\n")


def test_interrupt_that_nothing_follows_ends_the_process_and_its_children():
    code, _, said, took_s = told(HANGING)
    assert code == 143
    assert said.startswith("error: terminated; what had not ended after") and said.count("\n") == 1
    assert took_s < 25


def test_interrupt_that_was_ignored_before_still_is():
    code, printed, said, _ = told(IGNORED, signal.SIGINT)
    assert (code, printed, said) == (0, ["waiting"], "")


def test_interrupt_while_a_process_is_born_waits_until_it_is_known():
    code, printed, said, _ = told(BORN)
    assert (code, printed, said) == (143, ["waiting", "born True"], "error: terminated\n")
