"""The program that is deployed: `charge(number)`, `refund(number, reason=…)`, plain orders."""

import msgspec
from common import QUICK, app, note, note_tick

from penstock import current_job


class Order(msgspec.Struct):
    number: int
    item: str


@app.task(queue="shop", name="charge", retry=QUICK)
async def charge(number: int) -> None:
    if number % 7 == 0 and current_job().attempt == 1:
        raise ConnectionError("as ordered")
    note("charge", number)


@app.task(queue="shop", name="refund", retry=QUICK)
def refund(number: int, *, reason: str) -> None:
    note("refund", number)


@app.subscribe("orders", group="billing", retry=QUICK)
async def bill(order: Order) -> None:
    note("bill", order.number)


@app.every(0.2, name="report", missed="all")
@app.task(queue="reports", name="report", retry=QUICK)
async def report() -> None:
    note_tick("report")
