"""Secrets of settings and errors, planted and then looked for in all that is kept or shown."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.kit.secret_spellings import SPELLINGS

from penstock.testing.servers import ServerProcess, wait_until

SHOP = """
import json
import logging
from pathlib import Path
from penstock import Fixed, Penstock, RetryPolicy

TEXTS = json.loads(Path("texts.json").read_text())
ONCE = RetryPolicy(max_attempts=1)
app = Penstock()
orders = app.topic("orders")

def fail(number):
    raise RuntimeError(TEXTS[number])

@app.task(queue="mail", status=True, retry=ONCE)
async def send(number: int) -> None:
    logging.getLogger("shop").warning("about to fail", extra={"reply": TEXTS[number]})
    try:
        fail(number)
    except RuntimeError as error:
        error.suggestions = [TEXTS[number]]
        raise

@app.task(queue="mail", status=True, retry=ONCE, isolate=True)
def send_alone(number: int) -> None:
    fail(number)

@app.task(queue="start")
async def begin(alone: list[int]) -> None:
    for number in range(len(TEXTS)):
        await send.send(number)
        await orders.send({"number": number})
    for number in alone:
        await send_alone.with_options(idempotency_key=f"alone-{number}").send(number)

@orders.subscribe(group="bank", retry=RetryPolicy(max_attempts=2, backoff=Fixed(0)))
async def pay(order) -> None:
    fail(order["number"])
"""


def canary(number: int) -> str:
    return f"C4n{number:03}aryX7"


CANARY = re.compile(r"C4n\d{3}aryX7|C4nSetting\w+")
TEXTS = [text.replace("CANARY", canary(number)) for number, text in enumerate(SPELLINGS)]
SETTINGS = {
    "PENSTOCK_PASSWORD": "C4nSettingPassword",
    "PENSTOCK_SENTINEL_PASSWORD": "C4nSettingSentinel",
    "PENSTOCK_VECTORS_API_KEY": "C4nSettingVectors",
    "PENSTOCK_TABLES_URL": "postgresql://u:C4nSettingTables@127.0.0.1:1/db",
    "PENSTOCK_CODEC_COMPRESS_ABOVE": "100000000",  # so that what is stored can be read
}


def command_lines(of: int) -> str:
    """Those of a process and its children."""
    pids = [of, *map(int, Path(f"/proc/{of}/task/{of}/children").read_text().split())]
    return "\n".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in pids)


def all_stored(server: ServerProcess) -> str:
    """Every value of the server."""
    readers = {
        "string": ("GET",),
        "list": ("LRANGE", "0", "-1"),
        "set": ("SMEMBERS",),
        "zset": ("ZRANGE", "0", "-1"),
        "hash": ("HGETALL",),
        "stream": ("XRANGE", "-", "+"),
    }
    found = []
    with server.connect() as client:
        for key in client.call("KEYS", "*"):
            command, *rest = readers[str(client.call("TYPE", key))]
            found.append(repr(client.call(command, key, *rest)))
    return "\n".join(found)


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "JSON"])
def test_no_secret_of_an_error_is_kept_or_shown(start_server, open_shell, tmp_path, options):
    server = start_server(password=SETTINGS["PENSTOCK_PASSWORD"])
    shell = open_shell(PENSTOCK_URL=f"redis://127.0.0.1:{server.port}", **SETTINGS)
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    shell.ok("topic", "create", "orders")
    alone = [SPELLINGS.index("{'api_key': 'CANARY'}"), SPELLINGS.index("password = CANARY")]
    shell.ok("job", "send", "shop.begin", "--queue", "start", json.dumps([alone]))

    def letters(kind: str, name: str) -> list[dict]:
        found, cursor = [], []
        while True:
            page = shell.json("dlq", "list", name, kind, *cursor)
            found += page["letters"]
            after = page.get("cursor") or page.get("next")
            if not after:
                return found
            cursor = ["--cursor", after]

    logged = tmp_path / "logged"
    command = [sys.executable, "-m", "penstock", "worker", "shop:app", *options]
    with (
        logged.open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path, env=shell.env) as worker,
    ):
        try:
            wait_until(
                lambda: (
                    len(letters("--queue", "mail")) == len(TEXTS) + len(alone)
                    and len(letters("--topic", "orders")) == len(TEXTS)
                ),
                what="all letters",
                timeout_s=60,
            )
            seen = {"command lines": command_lines(worker.pid)}
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    seen["log"] = logged.read_text()
    assert seen["log"].count("about to fail") == len(TEXTS)
    for name, kind, id_ in (("mail", "--queue", "id"), ("orders", "--topic", "id")):
        seen[f"list of {name}"] = shell.ok("dlq", "list", name, kind)
        for letter in letters(kind, name)[::10]:  # what is stored is looked at whole, below
            seen[f"{name} {letter[id_]} as JSON"] = json.dumps(
                shell.json("dlq", "show", name, letter[id_], kind)
            )
    one = f"alone-{alone[0]}"
    seen["letter"] = shell.ok("dlq", "show", "mail", one, "--queue")
    seen["record"] = shell.ok("job", "show", "mail", one)
    seen["record as JSON"] = shell.ok("job", "show", "mail", one, "--json")
    for command in (["health"], ["doctor"], ["workers"], ["queue", "status"]):
        for more in ([], ["--json"]):
            done = shell(*command, *more)
            seen[" ".join([*command, *more])] = done.stdout + done.stderr
    seen["keys"] = all_stored(server)
    for path in server.folder.rglob("*.aof"):
        seen[path.name] = path.read_bytes().decode(errors="replace")
    leaks = {place: sorted(set(CANARY.findall(text))) for place, text in seen.items()}
    assert not {place: found for place, found in leaks.items() if found}
