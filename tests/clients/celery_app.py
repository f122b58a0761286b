"""An application of Celery with one task. A worker writes down what it ran, in the file `RAN`."""

import json
import os
from pathlib import Path

from celery import Celery

app = Celery("shop", broker=os.environ.get("BROKER"), set_as_current=False)


@app.task(name="shop.pay", shared=False)
def pay(number, *, currency):
    with Path(os.environ["RAN"]).open("a") as file:
        file.write(json.dumps([number, currency]) + "\n")
