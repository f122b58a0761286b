"""Create it."""

from django.db import migrations, models

COLUMNS = [("id", models.BigAutoField(primary_key=True)), ("name", models.CharField(max_length=100))]


class Migration(migrations.Migration):
    initial = True
    operations = (migrations.CreateModel("Effect", COLUMNS),)
