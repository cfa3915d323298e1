"""A history keeps every line that was written, whoever dies."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.kit.history import HistoryBroken, Recorder, payload_hash, read_history


def test_events_come_back_as_they_were_written_in_the_order_of_time(tmp_path):
    with Recorder(tmp_path, "b") as one, Recorder(tmp_path, "a") as other:
        call = one.write("send", "invoke", key="k", payload_hash=payload_hash(b"x"))
        other.write("start", group="g", partition=0, msg="1-0", attempt=1)
        one.write("send", "ok", call=call, partition=0, msg="1-0", delay_s=1.5)
    first, second, third = read_history(tmp_path)
    assert (first.actor, first.op, first.phase, first.key) == ("b", "send", "invoke", "k")
    assert (second.actor, second.pid, second.attempt) == ("a", os.getpid(), 1)
    assert (third.call, third.msg, third.delay_s, third.fence) == (first.seq, "1-0", 1.5, None)
    assert first.t_mono <= second.t_mono <= third.t_mono


def test_a_line_holds_no_more_than_was_told(tmp_path):
    with Recorder(tmp_path, "w") as recorder:
        recorder.write("lose")
    line = recorder.path.read_text()
    assert line.endswith("}\n")
    assert "fence" not in line
    assert "phase" not in line


def test_threads_share_a_recorder(tmp_path):
    with Recorder(tmp_path, "w") as recorder, ThreadPoolExecutor(8) as threads:
        numbers = list(threads.map(lambda _: recorder.write("start", msg="1-0"), range(2000)))
    assert sorted(numbers) == list(range(2000))
    assert sorted(event.seq for event in read_history(tmp_path)) == list(range(2000))


KILLED = """
import os, pathlib, signal, sys
from tests.kit.history import Recorder
recorder = Recorder(pathlib.Path(sys.argv[1]), "victim")
for number in range(500):
    recorder.write("start", msg=str(number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing_that_was_written(tmp_path):
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=60)
    assert run.returncode == -signal.SIGKILL
    assert [event.msg for event in read_history(tmp_path)] == [str(n) for n in range(500)]


def test_a_line_that_was_cut_off_at_the_end_is_left_out(tmp_path):
    with Recorder(tmp_path, "w") as recorder:
        recorder.write("start", msg="1-0")
    with recorder.path.open("a") as file:
        file.write('{"seq":1,"actor":"w"')
    assert [event.msg for event in read_history(tmp_path)] == ["1-0"]


@pytest.mark.parametrize("line", ["nonsense", '{"seq":1}', '{"seq":1,"actor":"w","op":"sing"}'])
def test_a_line_that_cannot_be_understood_makes_the_history_useless(tmp_path, line):
    (tmp_path / "w.jsonl").write_text(line + "\n")
    with pytest.raises(HistoryBroken, match=r"w\.jsonl"):
        read_history(tmp_path)


def test_two_recorders_never_write_to_one_file(tmp_path):
    with Recorder(tmp_path, "w"), pytest.raises(FileExistsError):
        Recorder(tmp_path, "w")
