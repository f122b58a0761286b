"""Views that do what a test tells them."""

from __future__ import annotations

import os
import time
from typing import Any

from django.db import connections, transaction
from django.http import Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from tests.adapters.django_plugin.project import write
from tests.adapters.django_plugin.shop.orders import orders


@csrf_exempt
def charge(request: Any) -> HttpResponse:
    """Write an effect, and answer as `orders` says."""
    orders.charged.append(request.body)
    write(orders.alias, request.GET.get("order", "a"))
    transaction.on_commit(lambda: orders.committed.append(len(orders.charged)), using=orders.alias)
    orders.began.set()
    if orders.waits is not None:
        assert orders.waits.wait(60)
    if orders.error is not None:
        raise orders.error
    if orders.rolls_back:
        transaction.set_rollback(True, using=orders.alias)
    if orders.reopens:
        connections[orders.alias].close()
        connections[orders.alias].connect()
    if orders.parts is not None:
        return StreamingHttpResponse(iter(orders.parts), status=orders.status, headers=orders.headers)
    body = f"charge {len(orders.charged)}" if orders.body is None else orders.body
    response = HttpResponse(body, status=orders.status, headers=orders.headers)
    response.set_cookie("session", "1")
    if orders.is_exception:
        response.exception = True
    return response


@csrf_exempt
async def awaited(request: Any) -> HttpResponse:
    """The same in an async view, by Django's own asynchronous face."""
    from tests.adapters.django_plugin.shop.models import Effect

    await Effect.objects.using(orders.alias).acreate(name=request.GET.get("order", "a"))
    orders.charged.append(request.body)
    if orders.error is not None:
        raise orders.error
    return HttpResponse(f"charge {len(orders.charged)}")


@csrf_exempt
def slow(request: Any, order: str) -> HttpResponse:
    """Write an effect, say so, and then wait if it is the order of which a process dies."""
    write("default", order)
    os.write(1, b"charged\n")
    time.sleep(float(os.environ.get("SLEEPS_S", "0")) if order == "a" else 0)
    return JsonResponse({"charged": order, "by": os.getpid()})


def missing(_: Any) -> HttpResponse:
    raise Http404


urlpatterns = [
    path("charge", charge),
    path("awaited", awaited),
    path("slow/<order>", slow),
    path("missing", csrf_exempt(missing)),
]
