"""Its next version.

`charge` takes a currency, `refund` needs no reason, `invoice` is new; the scheduled `report` takes
a kind, and `audit` is a schedule that was not there before.
"""

import msgspec
from common import QUICK, app, note, note_tick

from penstock import current_job


class Order(msgspec.Struct):
    number: int
    item: str
    coupon: str = ""


@app.task(queue="shop", name="charge", retry=QUICK)
async def charge(number: int, currency: str = "EUR") -> None:
    if number % 7 == 0 and current_job().attempt == 1:
        raise ConnectionError("as ordered")
    note("charge", number)


@app.task(queue="shop", name="refund", retry=QUICK)
def refund(number: int, *, reason: str = "") -> None:
    note("refund", number)


@app.task(queue="shop", name="invoice", retry=QUICK)
async def invoice(number: int) -> None:
    note("invoice", number)


@app.subscribe("orders", group="billing", retry=QUICK)
async def bill(order: Order) -> None:
    note("bill", order.number)


@app.every(0.2, name="report", kwargs={"kind": "short"}, missed="all")
@app.task(queue="reports", name="report", retry=QUICK)
async def report(kind: str = "full") -> None:
    note_tick("report")


@app.every(0.2, name="audit", missed="all")
@app.task(queue="reports", name="audit", retry=QUICK)
async def audit() -> None:
    note_tick("audit")
