"""The application's name."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "tests.adapters.django_plugin.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
