"""What happened."""

from django.db import models


class Effect(models.Model):
    """One effect; nothing but a key keeps it from happening twice."""

    name = models.CharField(max_length=100)

    def __str__(self) -> str:
        return self.name
