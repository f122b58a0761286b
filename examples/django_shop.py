"""A view of Django with `Idempotency-Key`: a client that repeats its request orders once."""

import json
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path

settings.configure(  # settings.py
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}},
    INSTALLED_APPS=["idempotent.adapters.django"],
    MIDDLEWARE=["idempotent.adapters.django.IdempotencyKeyMiddleware"],
    IDEMPOTENCY={
        "group": "shop",
        "scope": "idempotent.adapters.django.authorization",
        "required": True,
        "paths": ["/orders"],
    },
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
)
django.setup()
call_command("migrate", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (item VARCHAR(20))")


def order(request: HttpRequest) -> JsonResponse:
    item = json.loads(request.body)["item"]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (%s)", [item])
    return JsonResponse({"ordered": item}, status=201)


urlpatterns = [path("orders", order)]


def post(item: str, key: str) -> Any:
    headers = {"Authorization": "Bearer of-alice", "Idempotency-Key": key}
    return Client().post("/orders", {"item": item}, content_type="application/json", headers=headers)


for answer in (
    post("lamp", "order-1"),
    post("lamp", "order-1"),
    post("chair", "order-1"),
    post("chair", "order-2"),
):
    print(answer.status_code, answer.json(), answer.headers.get("Idempotent-Replayed", ""))

with connection.cursor() as cursor:
    cursor.execute("SELECT item FROM orders")
    assert [row[0] for row in cursor.fetchall()] == ["lamp", "chair"]
