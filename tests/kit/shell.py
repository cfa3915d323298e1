"""The command line as tests use it: real processes, in a folder and a namespace of their own."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import contextmanager

MODULE = [sys.executable, "-m", "penstock"]
HURRIED = {
    "PENSTOCK_TOPICS_REFRESH_S": "0.05",
    "PENSTOCK_TOPICS_LEASE_TTL_S": "1.5",
    "PENSTOCK_TOPICS_BALANCE_S": "0.1",
    "PENSTOCK_WORKER_POLL_S": "0.2",
    "PENSTOCK_EMBEDDED_LINGER_S": "0.1",
}

# Starts each command as a fork of itself, so that all is imported once: that takes longest.
NURSERY = """
import importlib, json, os, sys
from penstock.interfaces.cli.main import COMMANDS, main
for module, _ in COMMANDS.values():
    importlib.import_module(f"penstock.interfaces.cli.{module}")
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(order["folder"])
        for stream, name in enumerate(("stdin", "stdout", "stderr")):
            how = os.O_RDONLY if not stream else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(name, how, 0o600), stream)
        sys.stdin = open(0)
        os.environ.clear()
        os.environ |= order["environ"]
        sys.argv = ["penstock", *order["arguments"]]
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    """The process that starts the commands of all tests of a session, one after the other."""

    def __init__(self):
        self._process = None

    def run(self, **order):
        """Run a command to its end; its exit code."""
        if self._process is None:
            own = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
            self._process = subprocess.Popen(
                [sys.executable, "-c", NURSERY],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=own,
                text=True,
                start_new_session=True,
            )
        try:
            self._process.stdin.write(f"{json.dumps(order)}\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())
        except BaseException:  # the test took too long: the next one begins with another process
            os.killpg(self._process.pid, signal.SIGKILL)
            self.close()
            raise

    def close(self):
        if self._process is not None:
            self._process.communicate()
            self._process = None


class Shell:
    """Runs commands in an empty folder, against one server and one namespace."""

    def __init__(self, nursery, folder, namespace, **place):
        self.nursery, self.folder = nursery, folder
        own = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
        self.env = own | HURRIED | {"PENSTOCK_NAMESPACE": namespace} | place

    def __call__(self, *arguments, stdin="", traceback=False, **environ):
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        (self.folder / "stdin").write_bytes(data)
        code = self.nursery.run(
            arguments=arguments, folder=str(self.folder), environ=self.env | environ
        )
        out, err = ((self.folder / name).read_text() for name in ("stdout", "stderr"))
        assert ("Traceback" in err) == traceback, err
        return subprocess.CompletedProcess(arguments, code, out, err)

    def ok(self, *arguments, **options):
        done = self(*arguments, **options)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def json(self, *arguments, **options):
        return json.loads(self.ok(*arguments, "--json", **options))

    def objects(self, *arguments, **options):
        """What a command with one JSON object per line printed."""
        return [json.loads(line) for line in self.ok(*arguments, "--json", **options).splitlines()]

    @contextmanager
    def begin(self, *arguments, **options):
        process = subprocess.Popen(
            [*MODULE, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=self.env,
            text=True,
            **options,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    def on_a_terminal(self, answer, *arguments):
        """Run a command whose standard input is a terminal where somebody types."""
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        done = subprocess.run(
            [*MODULE, *arguments],
            stdin=theirs,
            capture_output=True,
            cwd=self.folder,
            env=self.env,
            timeout=60,
            text=True,
            check=False,
        )
        os.close(theirs)
        os.close(ours)
        return done


def refused(done, code, *words):
    assert done.stdout == ""
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("penstock: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for word in words:
        assert word in done.stderr
    return True


def all_refused(shell, code, cases):
    return all(refused(shell(*arguments), code, words) for arguments, words in cases)
