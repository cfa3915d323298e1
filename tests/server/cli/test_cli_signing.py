"""`penstock signing`, and commands that send where signatures are required."""

from tests.kit.shell import all_refused, refused

from penstock.interfaces.cli.output import ExitCode

PROGRAM = """
from penstock import Penstock

app = Penstock()

@app.task(queue="mail", name="note")
async def note(number: int) -> None:
    print("note", number, flush=True)


@app.queue("mail").handler
async def raw(job: str) -> None:
    print("raw", job, flush=True)


@app.subscribe("orders", group="g")
async def order(payload: int) -> None:
    print("order", payload, flush=True)
"""


def test_keys_are_made_and_used_by_commands(shell):
    assert shell.ok("signing", "new-key", "keys", "--id", "one") == "one\n"
    made = shell.json("signing", "new-key", "keys")
    assert made["id"].startswith("k20")
    environ = {
        "PENSTOCK_SIGNING_KEYS_FILE": str(shell.folder / "keys"),
        "PENSTOCK_SIGNING_SIGN_WITH": "one",
        "PENSTOCK_SIGNING_REQUIRE": "all",
    }
    shell.ok("topic", "create", "orders")
    shell.ok("job", "send", "note", "[1]", "--queue", "mail", **environ)
    shell.ok("queue", "push", "mail", "-", "--text", stdin="two\nthree\n", **environ)
    shell.ok("topic", "send", "orders", "4", **environ)
    shell.ok("queue", "push", "mail", "evil", "--text")
    shell.ok("topic", "send", "orders", "666")
    (shell.folder / "shop.py").write_text(PROGRAM)
    shell.env |= environ
    with shell.begin("worker", "shop:app") as worker:
        lines = {worker.stdout.readline().strip() for _ in range(4)}
        assert lines == {"note 1", "raw two", "raw three", "order 4"}
        worker.terminate()
        assert worker.wait(20) == 0
        assert "666" not in worker.stdout.read()
    [letter] = shell.json("dlq", "list", "mail", "--queue")["letters"]
    assert (letter["reason"], letter["error_code"]) == ("refused", "unsigned")
    [letter] = shell.json("dlq", "list", "orders", "--topic")["letters"]
    assert letter["reason"] == "refused"
    assert "BadSignature" in shell.ok("dlq", "list", "mail", "--queue")


def test_keys_that_cannot_be_used_are_refused_without_showing_them(shell):
    secret = "Q0FOQVJZ" * 6
    environ = {"PENSTOCK_SIGNING_SIGN_WITH": "one", "PENSTOCK_SIGNING_SIGN": "mail"}
    path = shell.folder / "keys"
    path.write_text(f"one = {secret}\n")
    path.chmod(0o644)
    for given in (
        {"PENSTOCK_SIGNING_KEYS_FILE": str(path)},
        {"PENSTOCK_SIGNING_KEYS": f"one={secret}x"},
        {"PENSTOCK_SIGNING_KEYS": f"other={secret}"},
        {},
    ):
        done = shell("queue", "push", "mail", "1", **environ, **given)
        refused(done, ExitCode.CONFIG, "signing.")
        assert "Q0FO" not in done.stderr + done.stdout
    all_refused(
        shell,
        ExitCode.CONFIG,
        {
            ("signing", "new-key", "keys", "--id", "two"): "chmod 600",
            ("signing", "new-key", "k", "--id", "a b"): "key id",
        }.items(),
    )
