"""A parser whose reader is an attacker's: what its fences let it do to its parent and to files.

Usage: `python -m tests.kit.programs.taken_over_parser UID FOLDER plain|ocr`. The child is the real
program of a parser with its real fences, run by the user `UID`. Prints one JSON object: the fences
that are missing, the outcome of each hostile call ("done" or the name of an error), the calls by
number that reach the kernel, and the state of the parent and of its files before and after.
"""

# ruff: noqa: PTH102, PTH104, PTH108, PTH115, PTH116, PTH208, PTH211, S606, T201

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import penstock.pipelines.documents.parsing.reading  # noqa: F401  imported before the user changes
from penstock.pipelines.documents.config.models import Chunking
from penstock.pipelines.documents.parsing import preloading
from penstock.pipelines.documents.parsing.chunks import Chunk, Part
from penstock.pipelines.documents.parsing.sandbox import child_program
from penstock.pipelines.documents.parsing.sandbox import protocol as wire
from penstock.processes.frames import frame, receive_frame

libc = ctypes.CDLL(None, use_errno=True)
ARM = os.uname().machine == "aarch64"
FATAL = {93, 94, 139} if ARM else {15, 60, 231, 335, 336}
"""exit, exit_group and rt_sigreturn end the child, and so do calls for the kernel's own probes."""


def outcome(action: Callable[[], Any]) -> str:
    try:
        action()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "done"


def call(name: str, *arguments: Any) -> Callable[[], None]:
    def run() -> None:
        ctypes.set_errno(0)
        if getattr(libc, name)(*arguments) == -1:
            raise OSError(ctypes.get_errno(), name)

    return run


def hostile(folder: Path, document: int) -> dict[str, Callable[[], Any]]:
    victim, parent = bytes(folder / "victim"), os.getppid()
    many, no_files = (ctypes.c_ulong * 2)(1, 1), (ctypes.c_ulong * 2)(0, 0)
    endless = (ctypes.c_ulong * 2)(2**64 - 1, 2**64 - 1)
    processors, priority = ctypes.c_ulong(1), ctypes.c_int(0)
    return {
        "limit the parent's files": call("prlimit", parent, resource.RLIMIT_NOFILE, no_files, None),
        "limit the parent's time": call("prlimit", parent, resource.RLIMIT_CPU, many, None),
        "read the parent's limits": call("prlimit", parent, resource.RLIMIT_AS, None, many),
        "raise its own memory": call("prlimit", 0, resource.RLIMIT_AS, endless, None),
        "nice the parent": call("setpriority", os.PRIO_PROCESS, parent, 19),
        "bind the parent": call("sched_setaffinity", parent, 8, ctypes.byref(processors)),
        "idle the parent": call("sched_setscheduler", parent, 5, ctypes.byref(priority)),
        "bind itself": lambda: os.sched_setaffinity(0, [0]),
        "disk priority of the parent": call("syscall", 30 if ARM else 251, 1, parent, 0x6000),
        "chmod": call("chmod", victim, 0o777),
        "fchmodat": call("fchmodat", -100, victim, 0o777, 0),
        "chown": call("chown", victim, os.getuid(), os.getgid()),
        "utime": lambda: os.utime(victim, (1, 1)),
        "setxattr": lambda: os.setxattr(victim, "user.owned", b"yes"),
        "removexattr": lambda: os.removexattr(victim, "user.mark"),
        "stat": lambda: os.stat(victim),
        "access": lambda: os.stat(folder.parent),
        "open": lambda: os.open(victim, os.O_RDONLY),
        "open a library": lambda: os.open(os.__file__, os.O_RDONLY),
        "write": lambda: os.open(victim, os.O_WRONLY),
        "create": lambda: os.open(folder / "made", os.O_CREAT | os.O_WRONLY),
        "list": lambda: os.listdir(folder),
        "rename": lambda: os.rename(victim, victim + b"2"),
        "unlink": lambda: os.unlink(victim),
        "truncate": lambda: os.truncate(victim, 0),
        "mkdir": lambda: os.mkdir(folder / "sub"),
        "link": lambda: os.link(victim, victim + b"3"),
        "symlink": lambda: os.symlink(victim, victim + b"4"),
        "chdir": lambda: os.chdir("/"),
        "chroot": lambda: os.chroot("/"),
        "mount": call("mount", b"none", b"/mnt", b"tmpfs", 0, None),
        "unshare": call("unshare", 0x1000_0000),
        "shared memory": call("shmget", 0x5EC5, 1 << 20, 0o1666),
        "semaphore": call("semget", 0x5EC5, 1, 0o1666),
        "message queue": call("msgget", 0x5EC5, 0o1666),
        "posix queue": call("syscall", 180 if ARM else 240, b"penstock", 0o102, 0o666, None),
        "inotify": call("inotify_init1", 0),
        "personality": call("personality", 0x0040000),
        "kill the parent": lambda: os.kill(parent, signal.SIGTERM),
        "signal its group": lambda: os.kill(0, signal.SIGCONT),
        "pidfd": lambda: os.pidfd_open(parent),
        "trace": call("ptrace", 16, parent, None, None),
        "read the parent": call("process_vm_readv", parent, None, 0, None, 0, 0),
        "tcp": lambda: socket.socket(socket.AF_INET),
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "socket pair": socket.socketpair,
        "another descriptor over the line": lambda: socket.send_fds(line(), [b"x"], [0]),
        "out-of-band data": lambda: line().send(b"x", socket.MSG_OOB),
        "peek": lambda: line().recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT),
        "signals of a descriptor to the parent": call(
            "fcntl", line().fileno(), fcntl.F_SETOWN, parent
        ),
        "which signal": call("fcntl", line().fileno(), fcntl.F_SETSIG, signal.SIGKILL),
        "lease": call("fcntl", document, fcntl.F_SETLEASE, fcntl.F_RDLCK),
        "lock": call("flock", document, fcntl.LOCK_EX),
        "another child of the parent": call(
            "syscall", 220 if ARM else 56, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0
        ),
        "fork": lambda: os.fork() or os._exit(0),
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "io_uring": call("syscall", 425, 4, bytes(120)),
        "keys": call("syscall", 219 if ARM else 250, 0, -3, 0),
        "bpf": call("syscall", 280 if ARM else 321, 0, None, 0),
        "perf": call("syscall", 241 if ARM else 298, None, 0, -1, -1, 0),
        "userfaultfd": call("syscall", 282 if ARM else 323, 0),
        "memfd": lambda: os.memfd_create("x"),
        "executable memory": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_EXEC | mmap.PROT_READ),
        "capabilities": call("capset", bytes(8), None),
        "seccomp": call("prctl", 22, 1),
        "dumpable": call("prctl", 4, 1),
        "user": lambda: os.setuid(0),
        "output": lambda: os.write(1, b"x"),
        "terminal": call("ioctl", 0, 0x5412, b"x"),
        "clock": call("settimeofday", bytes(16), None),
        "environment of the parent": lambda: os.open(f"/proc/{parent}/environ", os.O_RDONLY),
        "program of the parent": lambda: os.readlink(f"/proc/{parent}/exe"),
    }


def line() -> socket.socket:
    return next(one for one in SOCKETS if one.fileno() >= 0)


SOCKETS: list[socket.socket] = []


def reaching_the_kernel() -> list[int]:
    """The numbers of all calls that are not refused by the fence."""
    found: list[int] = []
    for number in range(480):
        if number in FATAL:
            continue
        ctypes.set_errno(0)
        # Arguments that no call accepts: -1 is no descriptor, process or address.
        result = libc.syscall(number, *(ctypes.c_long(-1) for _ in range(6)))
        if result != -1 or ctypes.get_errno() != errno.EPERM:
            found.append(number)
    return found


def attack(order: wire.PartRequest, descriptor: int) -> wire.Read:
    actions = hostile(Path(FOLDER), descriptor)
    outcomes = {name: outcome(action) for name, action in actions.items()}
    reached = reaching_the_kernel() if not order.ocr else []
    return wire.Read(Part([Chunk(json.dumps([outcomes, reached]))], "txt"), 1)


def state(folder: Path) -> dict[str, Any]:
    """What a hostile child could have changed."""
    victim = folder / "victim"
    about = victim.stat()
    limits = [
        resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIMIT_")
    ]
    ipc = [Path(f"/proc/sysvipc/{kind}").read_text() for kind in ("shm", "sem", "msg")]
    return {
        "limits": limits,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "scheduler": os.sched_getscheduler(0),
        "ioprio": libc.syscall(31 if ARM else 252, 1, 0),
        "files": sorted(os.listdir(folder)),
        "victim": [about.st_mode, about.st_uid, about.st_mtime_ns, about.st_ctime_ns],
        "content": victim.read_text(),
        "marks": {name: os.getxattr(victim, name).decode() for name in os.listxattr(victim)},
        "ipc": ipc,
        "queues": len(os.listdir("/dev/mqueue")) if Path("/dev/mqueue").is_dir() else 0,
    }


def main() -> None:
    uid, folder, kind = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    preloading.preload()
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    (folder / "victim").write_text("untouched")
    (folder / "victim").chmod(0o640)
    os.setxattr(folder / "victim", "user.mark", b"here")
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), output)
        SOCKETS.append(theirs)
        reader: Any = types.ModuleType("reading")
        reader.carry_out = attack
        sys.modules["penstock.pipelines.documents.parsing.reading"] = reader
        child_program.main(theirs.fileno(), os.getppid())
        os._exit(0)
    theirs.close()
    setup = wire.ParserSetup(1 << 30, 30, kind == "ocr")
    ours.sendall(frame(msgspec.msgpack.encode(setup)))
    ready = msgspec.msgpack.decode(receive_frame(ours), type=wire.ParserReply)
    before = state(folder)
    order = wire.PartRequest(
        9, "txt", "txt", False, Chunking(size=256, overlap=0), kind == "ocr", 0, 1, 0, 1_000
    )
    file = os.open(folder / "victim", os.O_RDONLY)
    socket.send_fds(ours, [frame(msgspec.msgpack.encode(order))], [file])
    try:
        reply = msgspec.msgpack.decode(receive_frame(ours), type=wire.ParserReply)
    except EOFError:
        sys.exit(f"the child ended: {os.wait()}")
    outcomes, reached = json.loads(reply.part.chunks[0].text)
    ours.close()
    os.wait()
    print(
        json.dumps(
            {
                "missing": ready.missing,
                "outcomes": outcomes,
                "reached": reached,
                "before": before,
                "after": state(folder),
            }
        )
    )


FOLDER = sys.argv[2] if len(sys.argv) > 2 else ""

if __name__ == "__main__":
    main()
